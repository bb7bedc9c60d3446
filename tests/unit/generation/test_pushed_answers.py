"""Whole answers from the bytes of a model server to the bytes of a client, at full speed."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from benchmarks.steps import Kind, stream
from benchmarks.texts import pieces, texts
from tests.support.script import Chunk, reasoning, text, tool_call

WORDS: Final = pieces(texts(1, 4096, seed=2)[0])


def call(*words: str) -> list[Chunk]:
    """Return the chunks of a call with these words as an argument."""
    return tool_call(0, "call_1", "f", '{"query": "', *words, '"}')


def said(item: Any) -> str:
    """Return the text, the reasoning or the argument in an item."""
    if item["type"] == "function_call":
        return str(json.loads(item["arguments"])["query"])
    return "".join(part["text"] for part in item["content"])


@pytest.mark.parametrize("together", [1, 4, 16, 600])
@pytest.mark.parametrize("count", [1, 2, 14, 15, 16, 17, 33, 300])
@pytest.mark.parametrize("chunks", [text, reasoning, call])
async def test_answer_of_many_chunks_is_whole(chunks: Callable[..., list[Chunk]], count: int, together: int) -> None:
    body = await stream(Kind(lambda count: chunks(*WORDS[:count]), together), count)
    events = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    last = events[-1]
    assert last["type"] == "response.completed", last["response"]["error"]
    assert [said(item) for item in last["response"]["output"]] == ["".join(WORDS[:count])]
    deltas = "".join(event["delta"] for event in events if event["type"].endswith(".delta"))
    assert "".join(WORDS[:count]) in deltas
