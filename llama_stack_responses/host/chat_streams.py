"""Reads the chat streams of the host's providers as `remote::openai-chat` reads its own.

The host's providers use the `openai` package, which builds each chunk field by field from the declared types. That
takes longer than all other processing of the chunk. The providers still send the requests; only the bytes of the answer
are read here, into the same objects.
"""

from __future__ import annotations

import platform
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

import openai
from pydantic import BaseModel

from llama_stack_openai_chat.chunks import chat_chunk
from llama_stack_openai_chat.events import EventReader

from .bounded_answers import bound_answers

_PASSES: Final = ("_maybe_overwrite_id", "_postprocess_chunk")
"""Methods that get the answer of a provider's client before the provider reads it: llama-stack's, and OGX's."""


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
            bound_answers(client)
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
    finally:
        await stream.close()
