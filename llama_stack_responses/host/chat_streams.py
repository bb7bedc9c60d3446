"""The chat streams of the host's providers, read as `remote::openai-chat` reads its own.

The host's providers ask through the `openai` package, which makes a chunk field by field from what each is declared to
be; that takes longer than all else that happens to it. They go on asking as they do. Only the bytes of the answer are
read here, and come out as the same objects.
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
"""Where the answer of a provider's client passes before the provider itself looks into it: llama-stack's, and OGX's."""


class ChatStreams:
    """Has providers give chat streams that are read here."""

    def __init__(self) -> None:
        self._kinds: dict[type, type] = {}

    def of(self, provider: Any) -> Any:
        """The same provider, with all that it has and comes to know, whose streams are read here.

        One that does not ask as the host's providers do is given back as it is.
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
    """A kind of provider, with streams that are read here."""

    class Reading(kind):  # type: ignore[misc]  # a class of the host's, known only while the program runs
        @property
        def client(self) -> Any:
            client = super().client
            # A new client asks for this in a thread. Beside streams at full speed that takes up to a fifth of a second,
            # since the thread has to wait for the interpreter each time that it goes on.
            client._platform = _platform()
            bound_answers(client)
            return client

    for name in _PASSES:
        if passes := getattr(kind, name, None):
            setattr(Reading, name, _reading_first(passes))
    return Reading


def _reading_first(passes: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The same place, at which a stream that nobody has begun to read is one that is read here."""

    async def passed(self: Any, resp: Any, stream: bool | None) -> Any:
        unread = isinstance(resp, openai.AsyncStream)
        return await passes(self, _chunks(resp) if unread else resp, stream)

    return passed


def _platform() -> str:
    """What the `openai` package calls this platform."""
    return platform.system().replace("Darwin", "MacOS") or "Unknown"


async def _chunks(stream: openai.AsyncStream[Any]) -> AsyncGenerator[Any]:
    """The chunks of a stream that nobody has begun to read."""
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
