"""An event that repeats the bytes of an earlier one around another text is not decoded."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_openai_chat.repeated import RepeatedEvent

type Json = dict[str, Any]

TEXTS: Final = st.text(alphabet=',:"{}[]\\ c1ß\n', max_size=4)


def event(text: str, **more: Any) -> bytes:
    return orjson.dumps({"id": "c1", "choices": [{"delta": {"content": text, **more}, "logprobs": None}]})


def text_of(value: Any) -> str | None:
    """Return the content of an event that has nothing else."""
    delta = value["choices"][0]["delta"]
    return delta["content"] if set(delta) == {"content"} else None


def learned(data: bytes, text: str) -> RepeatedEvent:
    repeated = RepeatedEvent()
    repeated.learn(data, text, text_of)
    return repeated


@pytest.mark.parametrize(
    "text", ["b", "", 'a "quoted" \\ one', "größer 語 \U0001f600", "\n", "x" * 100_000, "logprobs"]
)
def test_text_of_repeated_event_is_read(text: str) -> None:
    repeated = learned(event("a"), "a")
    assert repeated.text(event(text)) == text
    assert repeated.text(json.dumps(json.loads(event(text)), separators=(",", ":")).encode()) == text


@pytest.mark.parametrize(
    "data",
    [
        event("b", role="assistant"),
        event("b")[:-1],
        b'{"id":"c1","choices":[{"delta":{"content":null},"logprobs":null}]}',
        b'{"id":"c1","choices":[{"delta":{"content":"b","refusal":"no"},"logprobs":null}]}',
        b'{"id":"c1","choices":[{"delta":{"content":"b"},"x":{"y":"z"},"logprobs":null}]}',
        b'{"id":"c1","choices":[{"delta":{"content":"\\ud83d"},"logprobs":null}]}',
        b'{"id":"c1","choices":[{"delta":{"content":"},"logprobs":null}]}',
        b"",
    ],
    ids=["more before", "cut", "null", "more behind", "more inside", "half", "overlap", "empty"],
)
def test_other_event_is_not_read(data: bytes) -> None:
    assert learned(event("a"), "a").text(data) is None


@pytest.mark.parametrize("text", ["c1", "content", "id", ",", ":"])
def test_text_that_occurs_earlier_is_not_learned(text: str) -> None:
    assert learned(event(text), text).text(event("b")) is None


@given(TEXTS, TEXTS)
def test_any_text_is_read_or_not_learned(first: str, second: str) -> None:
    assert learned(event(first), first).text(event(second)) in (second, None)


@pytest.mark.parametrize("text", ["b", "", 'a "quoted" \\ one', "größer", "\n", "data: "])
def test_text_of_piece_with_only_repeated_event_is_read(text: str) -> None:
    repeated = learned(event("a"), "a")
    assert repeated.is_one_line
    assert repeated.only_text(b"data: %b\n\n" % event(text)) == text


@pytest.mark.parametrize(
    "piece",
    [
        b"data: %b\n\ndata: %b\n\n" % (event("b"), event("c")),
        b"data: %b\n\n: \n\n" % event("b"),
        b"data: %b\n" % event("b"),
        b"data: %b\r\n\r\n" % event("b"),
        b"data:%b\n\n" % event("b"),
        b"data: %b\n\n" % event("b").replace(b'"b"', b'"b\n\ndata: "'),
        b"data: %b\n\n" % event("b", role="assistant"),
        b'data: {"id":"c1","choices":[{"delta":{"content":"},"logprobs":null}]}\n\n',
        b"",
    ],
    ids=["two events", "comment", "no blank line", "cr", "no space", "line end inside", "other", "overlap", "empty"],
)
def test_other_piece_is_not_read(piece: bytes) -> None:
    assert learned(event("a"), "a").only_text(piece) is None


def test_event_of_several_lines_is_not_read_from_piece() -> None:
    repeated = learned(event("a").replace(b',"choices"', b',\n"choices"'), "a")
    assert repeated.text(event("b").replace(b',"choices"', b',\n"choices"')) == "b"
    assert not repeated.is_one_line


def test_text_with_other_escapes_is_not_learned() -> None:
    data = json.dumps(json.loads(event("ß")), separators=(",", ":")).encode()
    assert learned(data, "ß").text(event("b")) is None


def test_forgotten_event_is_not_read() -> None:
    repeated = learned(event("a"), "a")
    repeated.forget()
    assert repeated.text(event("b")) is None


def test_stream_without_repetition_stops_learning() -> None:
    repeated, requested = RepeatedEvent(), list[Any]()

    def counted(value: Any) -> str | None:
        requested.append(value)
        return text_of(value)

    for number in range(100):
        data = event("a").replace(b"c1", b"c%d" % number)
        assert repeated.text(data) is None
        repeated.learn(data, "a", counted)
    assert len(requested) < 20


def test_stream_that_repeats_itself_with_interruptions_is_learned_again() -> None:
    repeated = RepeatedEvent()
    for _ in range(100):
        repeated.learn(event("a"), "a", text_of)
        assert repeated.text(event("b")) == "b"
        repeated.forget()
