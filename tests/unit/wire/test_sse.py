"""Server-sent events as bytes."""

from __future__ import annotations

import json

import pytest

from llama_stack_responses.wire import sse


@pytest.mark.parametrize("separator", ["\x85", "\u2028", "\u2029", "\r", "\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_line_separator_in_text_does_not_end_sse_line(separator: str) -> None:
    text = f"é{separator}\u2027{separator}"
    event = {"type": "response.output_text.delta", "delta": text}
    lines = sse.encode([event]).decode().splitlines()
    assert lines[0] == "event: response.output_text.delta"
    assert json.loads(lines[1].removeprefix("data: ")) == event
    assert lines[2:] == [""]


def test_other_characters_are_sent_unescaped() -> None:
    event = {"type": "x", "delta": "\u2027\u202aâ¨Â…"}
    assert event["delta"].encode() in sse.encode([event])
