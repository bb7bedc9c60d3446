"""A large chunk becomes many small deltas, which are built one after another, and hostile fields become errors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final

import pytest

from llama_stack_responses.chat.answer_end import OutputLimitReached
from llama_stack_responses.chat.chunks import ChunkReader
from llama_stack_responses.chat.pieces import FEW, PIECE_CHARACTERS
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.stream.deltas import Annotation, Delta, Finish, Reasoning, Refusal, Text, ToolCall
from llama_stack_responses.stream.usage import Usage
from tests.support.inference import call, chunk, finish

Json = dict[str, Any]

LONG: Final = "word " * 100_000


def reader(max_characters: int = 10**9, **profile: Any) -> ChunkReader:
    return ChunkReader(Profile(**profile), max_characters)


def tokens(*texts: str, tops: int = 0) -> Any:
    """Return the logprobs of these tokens."""
    other = {"token": "y", "bytes": [121], "logprob": -2.0}
    content = [{"token": each, "bytes": None, "logprob": -1.0, "top_logprobs": [other] * tops} for each in texts]
    return SimpleNamespace(content=content)


@pytest.mark.parametrize(
    ("delta", "kind"),
    [
        ({"content": LONG}, Text),
        ({"content": [{"type": "text", "text": LONG}]}, Text),
        ({"reasoning_content": LONG}, Reasoning),
        ({"thinking_blocks": [{"thinking": LONG}]}, Reasoning),
        ({"refusal": LONG}, Refusal),
    ],
    ids=["content", "parts", "reasoning", "blocks", "refusal"],
)
def test_long_text_is_read_in_pieces_while_they_are_taken(delta: Json, kind: type) -> None:
    reading = reader()
    created = reading.read(chunk(delta))
    assert isinstance(created, Iterator)
    assert reading.characters <= (FEW + 1) * PIECE_CHARACTERS
    pieces: list[Any] = list(created)
    assert {type(piece) for piece in pieces} == {kind}
    assert max(len(piece.text) for piece in pieces) == PIECE_CHARACTERS
    assert "".join(piece.text for piece in pieces) == LONG
    assert reading.characters == len(LONG)


def test_long_arguments_are_fragments_of_one_call() -> None:
    reading = reader()
    first, *rest = reading.read(call("f", "c1", LONG))
    assert isinstance(first, ToolCall)
    assert (first.name, first.call_id) == ("f", "c1")
    assert "".join([first.arguments, *(each.arguments for each in rest if isinstance(each, ToolCall))]) == LONG
    assert {(each.key, each.name) for each in rest if isinstance(each, ToolCall)} == {(first.key, "")}


@pytest.mark.parametrize("count", [17, 64, 1_000])
def test_text_of_many_tokens_keeps_them_with_their_text(count: int) -> None:
    texts = [f"t{number} " for number in range(count)]
    created = list(reader().read(chunk({"content": "".join(texts)}, logprobs=tokens(*texts))))
    pieces = [piece for piece in created if isinstance(piece, Text)]
    assert "".join(piece.text for piece in pieces) == "".join(texts)
    for piece in pieces:
        assert "".join(each["token"] for each in piece.logprobs or ()) == piece.text


def test_tokens_that_do_not_fit_their_text_are_all_kept() -> None:
    texts = ["longer"] * 40
    created = list(reader().read(chunk({"content": "x" * 100}, logprobs=tokens(*texts))))
    pieces = [piece for piece in created if isinstance(piece, Text)]
    assert "".join(piece.text for piece in pieces) == "x" * 100
    assert sum(len(piece.logprobs or ()) for piece in pieces) == 40


def test_tokens_without_text_are_bounded() -> None:
    reading = reader()
    list(reading.read(chunk({"content": "x"}, logprobs=tokens(*["t"] * 10_000, tops=20))))
    assert reading.characters < 100_000


def test_round_ends_at_its_limit_within_a_chunk() -> None:
    reading = reader(max_characters=20 * PIECE_CHARACTERS)
    created = reading.read(chunk({"content": LONG}))
    list(islice(created, 20))
    reading.check_size()
    next(iter(created))
    with pytest.raises(OutputLimitReached):
        reading.check_size()


def test_calls_of_a_round_are_bounded() -> None:
    reading = reader()
    calls = [{"index": number, "function": {"name": "f", "arguments": "{}"}} for number in range(2_000)]
    created: list[Delta] = []
    with pytest.raises(OutputLimitReached):
        created.extend(reading.read(chunk({"tool_calls": calls})))
    assert [delta.reason for delta in reading.end() if isinstance(delta, Finish)] == ["length"]


BLOCK: Final = {"url_citation": {"url": "u", "title": "t", "start_index": 0, "end_index": 1}}


@pytest.mark.parametrize(
    "delta",
    [
        {"content": [{"type": "text", "text": "x"}] * 2_000},
        {"thinking_blocks": [{}] * 2_000},
        {"annotations": [BLOCK] * 2_000},
        {"thinking_blocks": 5},
        {"annotations": 5},
        {"content": {"a": 1}},
        {"tool_calls": [{"index": [], "function": {"name": "f"}}]},
        {"tool_calls": [{"index": 0, "function": {"name": ["f"]}}]},
        {"tool_calls": [{"index": 0, "id": {"a": 1}, "function": {"name": "f"}}]},
    ],
    ids=["parts", "blocks", "citations", "no_blocks", "no_annotations", "no_content", "index", "name", "id"],
)
def test_hostile_chunk_is_an_error_of_the_model_server(delta: Json) -> None:
    with pytest.raises(ApiError) as caught:
        list(reader().read(chunk(delta)))
    assert caught.value.status == 502


@pytest.mark.parametrize(
    "citation",
    [
        {"url": ["u"], "title": "t", "start_index": 0, "end_index": 1},
        {"url": "u", "title": "t", "start_index": 0, "end_index": 10**400},
        {"url": "u", "title": "t", "start_index": -1, "end_index": 1},
    ],
)
def test_annotation_that_cannot_be_sent_is_dropped(citation: Json) -> None:
    assert list(reader().read(chunk({"annotations": [{"url_citation": citation}]}))) == []


def test_annotation_with_half_a_surrogate_pair_is_repaired() -> None:
    [created] = reader().read(chunk({"annotations": [{"url_citation": {**BLOCK["url_citation"], "title": "\ud800"}}]}))
    assert isinstance(created, Annotation)
    assert created.value["title"] == "\ufffd"


@pytest.mark.parametrize("number", ["x", [], -1, 0.5, None])
def test_number_of_tokens_of_another_type_leaves_usage_unknown(number: Any) -> None:
    reading = reader()
    reading.read(chunk({"content": "a"}, finish_reason="stop", usage={"prompt_tokens": number, "completion_tokens": 3}))
    [end] = reading.end()
    assert isinstance(end, Finish)
    assert end.usage == Usage(is_partial=True)


def test_enormous_number_of_tokens_is_capped() -> None:
    reading = reader()
    reading.read(chunk({}, finish_reason="stop", usage={"prompt_tokens": 10**4_000, "completion_tokens": 0}))
    [end] = reading.end()
    assert isinstance(end, Finish)
    assert end.usage.input_tokens == 2**53


@pytest.mark.parametrize("reason", [{"a": []}, ["stop"], 5])
def test_finish_reason_of_another_type_ends_the_round(reason: Any) -> None:
    reading = reader()
    reading.read(finish(reason))
    [end] = reading.end()
    assert isinstance(end, Finish)
    assert end.reason == "stop"


def test_bytes_of_a_token_that_are_a_number_are_not_allocated() -> None:
    entry = {"token": "a", "bytes": 10**12, "logprob": "low", "top_logprobs": []}
    [created] = reader().read(chunk({"content": "a"}, logprobs=SimpleNamespace(content=[entry])))
    assert isinstance(created, Text)
    assert created.logprobs == [{"token": "a", "bytes": [97], "logprob": -9999.0, "top_logprobs": []}]
