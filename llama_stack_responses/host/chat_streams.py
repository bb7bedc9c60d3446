"""Reads the chat streams of the host's providers as `remote::openai-chat` reads its own.

The host's providers use the `openai` package, which builds each chunk field by field from the declared types. That
takes longer than all other processing of the chunk. The providers still send the requests; only the bytes of the answer
are read here, into the same objects. An answer that is not streamed is read by the client, which buffers it whole, so
its bytes are counted here.
"""

from __future__ import annotations

import platform
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Final

import httpx2
import openai
from pydantic import BaseModel

from llama_stack_openai_chat.chunks import chat_chunk
from llama_stack_openai_chat.events import EventReader
from llama_stack_openai_chat.retries import says_of_request

_PASSES: Final = ("_maybe_overwrite_id", "_postprocess_chunk")
"""Methods that get the answer of a provider's client before the provider reads it: llama-stack's, and OGX's."""
_MAX_BYTES: Final = 1 << 26
"""Maximum bytes of one answer."""
_LENGTHS: Final = frozenset({"content-length", "transfer-encoding"})
_STREAM: Final = "text/event-stream"


class ChatStreams:
    """Wraps providers so that their chat streams are read here."""

    def __init__(self) -> None:
        self._kinds: dict[type, type] = {}

    def of(self, provider: Any) -> Any:
        """Return a provider with the same state whose streams are read here.

        A provider that is not built like the host's providers is returned unchanged.
        """
        kind = type(provider)
        if not (isinstance(provider, BaseModel) and any(hasattr(kind, name) for name in _PASSES)):
            return provider
        if kind not in self._kinds:
            self._kinds[kind] = _reading(kind)
        twin: Any = object.__new__(self._kinds[kind])
        for slot in BaseModel.__slots__:
            object.__setattr__(twin, slot, getattr(provider, slot))
        return twin


def _reading(kind: Any) -> type:
    """Return a subclass of a provider class whose streams are read here."""

    class Reading(kind):  # type: ignore[misc]  # a class of the host's, known only while the program runs
        @property
        def client(self) -> Any:
            client = super().client
            # A new client computes this in a thread. While streams run at full speed, that takes up to a fifth of a
            # second, because the thread has to wait for the GIL each time it continues.
            client._platform = _platform()
            _bound_answers(client)
            return client

    # The host would add them while it traces, also for a server that refuses them. The request has what is wanted.
    Reading.supports_stream_options = property(lambda _: False)
    for name in _PASSES:
        if passes := getattr(kind, name, None):
            setattr(Reading, name, _reading_first(passes))
    return Reading


def _reading_first(passes: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap the method so that it gets a reader of this module in place of an unread stream."""

    async def passed(self: Any, resp: Any, stream: bool | None) -> Any:
        unread = isinstance(resp, openai.AsyncStream)
        return await passes(self, _chunks(resp) if unread else resp, stream)

    return passed


def _platform() -> str:
    """Return the name of this platform in the `openai` package."""
    return platform.system().replace("Darwin", "MacOS") or "Unknown"


async def _chunks(stream: openai.AsyncStream[Any]) -> AsyncGenerator[Any]:
    """Yield the chunks of an unread stream."""
    reader = EventReader(chat_chunk, lambda: stream.response.request)
    try:
        async for piece in stream.response.aiter_bytes():
            for chunk in reader.read(piece):
                yield chunk
            if reader.done:
                return
        for chunk in reader.read(b""):
            yield chunk
        if not reader.done and (reader.is_cut or not _has_marked_end(stream.response)):
            message = "The connection may have ended before the answer."
            raise openai.APIConnectionError(message=message, request=stream.response.request)
    finally:
        await stream.close()


def _has_marked_end(response: httpx2.Response) -> bool:
    """Return whether the end of a body differs from a connection that broke."""
    return response.http_version == "HTTP/2" or not _LENGTHS.isdisjoint(response.headers)


def _bound_answers(client: Any) -> None:
    """Make a client of the `openai` package refuse answers that are too large, while it reads them.

    Args:
        client: a client that is used for a single request, or that is bounded already.
    """
    http = client._client
    hooks = http.event_hooks
    if _bound not in hooks["response"]:
        # A compressed answer could expand a thousandfold.
        http.headers["accept-encoding"] = "identity"
        http.event_hooks = {**hooks, "response": [*hooks["response"], _bound]}


async def _bound(response: httpx2.Response) -> None:
    """Limit the body of a response, and the retries of it. httpx2 calls this before it reads the body."""
    if response.headers.get("content-type", "").startswith(_STREAM):
        return
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("The model server compressed its answer, which was not requested.")
    if isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Bounded(response.stream)
    if response.status_code >= httpx2.codes.INTERNAL_SERVER_ERROR:
        await response.aread()
        if says_of_request(response.status_code, response.text):
            # The client would send the same request again, twice.
            response.headers["x-should-retry"] = "false"


class _Bounded(httpx2.AsyncByteStream):
    """A body that raises an error when it exceeds the limit."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = _MAX_BYTES
        async for piece in self._inner:
            left -= len(piece)
            if left < 0:
                raise httpx2.ReadError(f"The model server's answer is larger than {_MAX_BYTES} bytes.")
            yield piece

    async def aclose(self) -> None:
        """Close the body."""
        await self._inner.aclose()
