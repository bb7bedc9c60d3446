"""Server-sent events as bytes."""

from __future__ import annotations

import json

import orjson
import pytest

from llama_stack_responses.core.json_blocks import BLOCK_BYTES
from llama_stack_responses.items.form import streamed_events
from llama_stack_responses.stream import events
from llama_stack_responses.stream.delta_forms import DeltaForm, DeltaRun, LastForm
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


ARGUMENTS = streamed_events("arguments", "function_call_arguments")
DELTAS = [
    events.output_text_delta(7, "msg_%d", 1, 2, "a", []),
    events.reasoning_text_delta(7, "rs_%b%", 1, 0, "a"),
    ARGUMENTS.delta(7, "fc_1", 3, "a"),
    {"type": "%x", "sequence_number": 1, "delta": "a", "more": "100%"},
]


@pytest.mark.parametrize("event", DELTAS, ids=lambda event: event["type"])
@pytest.mark.parametrize("text", ["", "word ", '"\\%d', "ß 語 \u2028\x85"])
def test_filled_in_form_is_encoded_event(event: dict[str, object], text: str) -> None:
    frame = sse.frame_form(event) % (12, orjson.dumps(text))
    assert sse.without_line_separators(frame) == sse.encode([{**event, "sequence_number": 12, "delta": text}])


@pytest.mark.parametrize("event", DELTAS)
def test_frames_of_run_are_those_of_its_events(event: dict[str, object]) -> None:
    run = DeltaRun(DeltaForm(event), 9, ["a%", "é\u2028", '"\\'])
    frames = sse.encode(run.events())
    assert sse.run(str(event["type"]), run.json()) == frames
    assert sse.small(b"".join(run.filled(sse.frame_form(event)))) == frames


def test_last_form_is_made_again_unless_only_number_and_text_differ() -> None:
    event, made = DELTAS[0], list[events.Event]()

    def make(like: events.Event) -> bytes:
        made.append(like)
        return sse.frame_form(like)

    last, other = LastForm(make), {**event, "item_id": "msg_2"}
    for like in (event, event, {**event, "sequence_number": 8, "delta": "b"}, other, event):
        assert last.of(like) == sse.frame_form(like)
    assert made == [event, other, event]


def test_large_run_has_no_frames() -> None:
    run = DeltaRun(DeltaForm(DELTAS[0]), 1, ["a" * BLOCK_BYTES] * 2)
    assert sse.run("response.output_text.delta", run.json()) is None
