"""Chunks as each kind of provider builds them, and what `ChunkReader` makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pytest
from openai.types.chat import ChatCompletionChunk

from llama_stack_responses.chat.chunks import ChunkReader
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.stream.deltas import Delta, Finish, Reasoning, ToolCall

try:
    from llama_stack_api.inference.models import OpenAIChatCompletionChunk as HostChunk
except ImportError:
    from ogx_api.inference.models import OpenAIChatCompletionChunk as HostChunk

Json = dict[str, Any]

MOST: Final = 10**9
Maker = Callable[[Json], Any]


def as_client(chunk: Json) -> Any:
    """Return the chunk as the `openai` client builds it: as the provider sent it, unchecked."""
    return ChatCompletionChunk.construct(**chunk)


def as_openai(chunk: Json) -> Any:
    """Return the chunk as built by a provider of the host that translates another API."""
    return ChatCompletionChunk.model_validate(chunk)


def as_host(chunk: Json) -> Any:
    """Return the chunk as built by a provider that uses the host's own types."""
    return HostChunk.model_validate(chunk)


any_maker = pytest.mark.parametrize("make", [as_client, as_openai, as_host])
openai_maker = pytest.mark.parametrize("make", [as_client, as_openai])


def envelope(choices: list[Json], **more: Any) -> Json:
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more}


def chunk(delta: Json | None = None, *, finish: str | None = None, logprobs: Json | None = None, **more: Any) -> Json:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish, "logprobs": logprobs}
    return envelope([choice], **more)


def read(make: Maker, chunks: Iterable[Json], profile: Profile | None = None, finish: str = "stop") -> list[Delta]:
    """Return the deltas of these chunks and of one with a finish reason, without `Finish`."""
    reader = ChunkReader(profile or Profile(), MOST)
    deltas = [delta for each in [*chunks, chunk(finish=finish)] for delta in reader.read(make(each))]
    *rest, last = reader.end()
    assert isinstance(last, Finish)
    return said(deltas + rest)


def said(deltas: Iterable[Delta]) -> list[Delta]:
    """Return the deltas without those that only say in which entry of a list the reasoning before them was."""
    return [delta for delta in deltas if delta not in (Reasoning(""), Reasoning("", summary=True))]


def ended(chunks: Sequence[Json], make: Maker = as_client) -> Finish:
    reader = ChunkReader(Profile(), MOST)
    for each in chunks:
        reader.read(make(each))
    [finish] = reader.end()
    assert isinstance(finish, Finish)
    return finish


def fragment(
    index: int | None = 0, call_id: str | None = None, name: str | None = None, arguments: str | None = None
) -> Json:
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(deltas: Iterable[Delta]) -> list[tuple[str, str, str]]:
    """Return each call as (id, name, arguments), joined by key, in order of their beginning."""
    created: dict[Any, list[str]] = {}
    for delta in deltas:
        assert isinstance(delta, ToolCall)
        call = created.setdefault(delta.key, ["", "", ""])
        call[0] = call[0] or delta.call_id
        call[1] += delta.name if delta.name != call[1] else ""
        call[2] += delta.arguments
    return [(call[0], call[1], call[2]) for call in created.values()]


USAGE: Final[Json] = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


CALL: Final = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a":1}'}}]}
