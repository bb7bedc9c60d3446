"""One chat request to a model server, and its answer, read as the server reads the answers to its users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ...chat.answer_end import OutputLimitReached
from ...chat.chunks import ChunkReader
from ...chat.profile import Profile
from ...core.errors import ApiError
from ...core.types import Json
from ...model_server.client import WAIT
from ...stream.deltas import Delta, Finish, Reasoning, Text, ToolCall
from ...stream.usage import Usage

_CHARACTERS: Final = 16_384
"""Maximum characters of an answer that are read."""
_MAX_CHUNKS: Final = 4_000


class Server(Protocol):
    """A model server, as a part of `Inference` of `chat/inference.py`."""

    async def open_stream(self, request: Json, /) -> AsyncGenerator[Any]:
        """Send a chat request, and return the chunks of its answer; `ApiError` if it fails."""
        ...

    def to_api_error(self, error: Exception) -> ApiError:
        """Return the error for an exception that the chunks raised."""
        ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one answer may take.

    Attributes:
        seconds: time limit, from the request to its end.
        characters: maximum characters that are read.
        chunks: maximum number of chunks that are read.
    """

    seconds: float
    characters: int = _CHARACTERS
    chunks: int = _MAX_CHUNKS


@dataclass(slots=True)
class Call:
    """A call of a tool."""

    name: str = ""
    call_id: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """An answer.

    Attributes:
        text: the text.
        reasoning: the text of the reasoning.
        reasoning_field: the member of messages in which the reasoning came; empty if none came.
        calls: the calls of tools.
        reason: why the model stopped, as the server said it; empty if it did not.
        done: whether the stream ended with `[DONE]`; None if that is unknown.
        usage: the reported tokens; None if none are reported.
        has_logprobs: whether there were log probabilities of tokens.
        cut: whether reading was stopped because of its bounds.
        first_seconds: seconds until the first piece of it came; None if none came.
        seconds: seconds until its end.
    """

    text: str = ""
    reasoning: str = ""
    reasoning_field: str = ""
    calls: list[Call] = field(default_factory=list)
    reason: str = ""
    done: bool | None = None
    usage: Usage | None = None
    has_logprobs: bool = False
    cut: bool = False
    first_seconds: float | None = None
    seconds: float = 0.0

    @property
    def said(self) -> str:
        """All that the model wrote as words."""
        return f"{self.reasoning}{self.text}"


async def ask(server: Server, chat: Json, bounds: Bounds, clock: Callable[[], float]) -> Answer:
    """Send a chat request, and read its answer.

    Args:
        server: the model server.
        chat: the request.
        bounds: what the answer may take.
        clock: returns seconds.

    Raises:
        ApiError: it failed, or took too long; `RefusedError` if the server refused it, `TooLongError` if it is too long
            for the model.
    """
    try:
        async with asyncio.timeout(bounds.seconds):
            return await _Reading(bounds, clock).read(server, chat)
    except TimeoutError as error:
        late = f"The model server does not end its answer within {bounds.seconds:g} seconds"
        raise ApiError(504, f"{late}: {WAIT}.") from error


class _Reading:
    """The reading of one answer."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        self._reader = ChunkReader(Profile(), bounds.characters)
        self._max_chunks, self._clock = bounds.chunks, clock
        self._began = clock()
        self._answer = Answer()
        self._text, self._reasoning = list[str](), list[str]()
        self._calls: dict[Hashable, Call] = {}

    async def read(self, server: Server, chat: Json) -> Answer:
        stream = await server.open_stream(chat)
        answer = self._answer
        try:
            async with aclosing(stream):
                await self._chunks(stream)
        except OutputLimitReached:
            answer.cut = True
        except ApiError:
            raise
        except Exception as error:
            raise server.to_api_error(error) from error
        answer.done = getattr(stream, "done", None)
        for delta in self._reader.end() if not answer.cut else ():
            self._take(delta)
        answer.text, answer.reasoning = "".join(self._text), "".join(self._reasoning)
        answer.calls = list(self._calls.values())
        answer.seconds = self._clock() - self._began
        return answer

    async def _chunks(self, stream: AsyncGenerator[Any]) -> None:
        count = 0
        async for chunk in stream:
            for delta in self._reader.read(chunk):
                self._take(delta)
            if chunk.choices and (reason := chunk.choices[0].finish_reason):
                self._answer.reason = str(reason)
            count += 1
            if count > self._max_chunks:
                raise self._reader.cut()

    def _take(self, delta: Delta) -> None:
        answer = self._answer
        match delta:
            case Text():
                self._text.append(delta.text)
                answer.has_logprobs = answer.has_logprobs or bool(delta.logprobs)
            case Reasoning():
                self._reasoning.append(delta.text)
                source = delta.origin.source if delta.origin else None
                answer.reasoning_field = answer.reasoning_field or (source or "reasoning_content").partition(" ")[0]
            case ToolCall():
                call = self._calls.setdefault(delta.key, Call())
                call.name += delta.name
                call.call_id = call.call_id or delta.call_id
                call.arguments += delta.arguments
            case Finish():
                answer.usage = delta.usage if delta.usage.input_tokens else None
                return
        if answer.first_seconds is None:
            answer.first_seconds = self._clock() - self._began
