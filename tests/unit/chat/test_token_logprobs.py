"""The logprobs of tokens in all forms of servers."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.chat.profile import InlineThinking, Profile
from llama_stack_responses.stream.deltas import Reasoning, Text
from tests.support.chunk_reading import Json, Maker, any_maker, as_client, chunk, read


def logprob(token: str, value: Any, encoded: list[int] | None = None, tops: Any = ()) -> Json:
    return {"token": token, "logprob": value, "bytes": encoded, "top_logprobs": tops and list(tops)}


def shown(make: Maker, *entries: Json) -> list[Json] | None:
    [delta] = read(make, [chunk({"content": "a"}, logprobs={"content": list(entries), "refusal": None})])
    assert isinstance(delta, Text)
    return delta.logprobs


@any_maker
def test_logprobs_are_read(make: Maker) -> None:
    top = {"token": "b", "logprob": -1.5, "bytes": [98]}
    assert shown(make, logprob("a", -0.5, [97], [top])) == [
        {"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": [top]}
    ]


@any_maker
def test_null_bytes_of_token_are_filled_in(make: Maker) -> None:
    top = {"token": "ü", "logprob": -1.5, "bytes": None}
    [entry] = shown(make, logprob("é", -0.5, None, [top])) or []
    assert entry["bytes"] == [0xC3, 0xA9]
    assert entry["top_logprobs"][0]["bytes"] == [0xC3, 0xBC]


def test_texts_of_tokens_are_bounded() -> None:
    top = {"token": "u", "logprob": -1.5, "bytes": [117] * 1_000}
    [entry] = shown(as_client, logprob("t" * 1_000, -0.5, None, [top])) or []
    assert (len(entry["token"]), len(entry["bytes"]), len(entry["top_logprobs"][0]["bytes"])) == (256, 256, 256)


@pytest.mark.parametrize("value", [-float("inf"), float("nan"), -10_000.0, None])
def test_infinite_and_missing_logprobs_become_finite(value: float | None) -> None:
    top = {"token": "b", "logprob": value, "bytes": None}
    [entry] = shown(as_client, logprob("a", value, None, [top])) or []
    assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] == -9999.0


@any_maker
def test_character_in_several_tokens_keeps_all_logprobs(make: Maker) -> None:
    def chunk_of(text: str, *entries: Json) -> Json:
        return chunk({"content": text}, logprobs={"content": list(entries), "refusal": None})

    first, second = logprob("\ufffd", -0.5, [0xF0, 0x9F]), logprob("\ufffd", -0.25, [0x98, 0x80])
    hidden = logprob("<tool>", -1.0, list(b"<tool>"))
    [delta] = read(make, [chunk_of("", hidden), chunk_of("", first), chunk_of("😀", second)])
    assert isinstance(delta, Text)
    assert [entry["bytes"] for entry in delta.logprobs or ()] == [[0xF0, 0x9F], [0x98, 0x80]]


def test_logprobs_without_alternatives_are_read() -> None:
    [entry] = shown(as_client, logprob("a", -0.5, None, None)) or []
    assert entry["top_logprobs"] == []


@any_maker
def test_null_logprobs_are_accepted(make: Maker) -> None:
    assert read(make, [chunk({"content": "a"}, logprobs={"content": None, "refusal": None})]) == [Text("a", [])]
    assert read(make, [chunk({"content": "a"}, logprobs=None)]) == [Text("a", None)]


def test_logprobs_of_reasoning_are_dropped() -> None:
    reasoned = chunk({"reasoning_content": "a"}, logprobs={"content": [logprob("a", -0.5)]})
    assert read(as_client, [reasoned]) == [Reasoning("a")]


def test_logprobs_with_inline_thinking_belong_to_text() -> None:
    profile = Profile(inline_thinking=InlineThinking())
    pieces = ["<think>", "a", "</think>b", "c", "d<"]
    chunks = [chunk({"content": piece}, logprobs={"content": [logprob(piece, -0.5)]}) for piece in pieces]
    deltas = read(as_client, chunks, profile)
    assert [(type(delta), delta.text) for delta in deltas if isinstance(delta, Text | Reasoning)] == [
        (Reasoning, "a"),
        *((Text, text) for text in ("b", "c", "d<")),
    ]
    with_logprobs = [delta.text for delta in deltas if isinstance(delta, Text) and delta.logprobs]
    assert with_logprobs == ["c", "d<"]
