"""Events are encoded once for the store and their readers, and only if their JSON is needed."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from llama_stack_responses.generation.shared_events import SharedEvents
from llama_stack_responses.store import codec
from llama_stack_responses.stream.delta_forms import DeltaForm, DeltaRun

EVENT = {"type": "response.output_text.delta", "sequence_number": 1, "delta": "word"}


def joined(events: SharedEvents) -> bytes:
    return b"".join(events.encoded())


def test_events_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Mock(side_effect=codec.text_of_small)
    monkeypatch.setattr(codec, "text_of_small", encode)
    events = SharedEvents([EVENT])
    frames = events.frames(joined)
    assert frames == events.frames(joined) == b"".join(events.json)
    encode.assert_called_once()


def test_events_that_are_refused_are_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Mock()
    monkeypatch.setattr(codec, "text_of_small", encode)
    assert SharedEvents([EVENT]).frames(lambda *_: None) is None
    encode.assert_not_called()


@pytest.mark.parametrize("text", ["word", "é\u2028%", "half \ud83d"])
def test_run_is_encoded_as_its_events(text: str) -> None:
    run = DeltaRun(DeltaForm(EVENT), 5, ["a", text])
    events, single = SharedEvents(run), SharedEvents(run.events())
    assert (events.json, events.lenient) == (single.json, single.lenient)
    assert events.lenient == text.startswith("half")
    assert (events.first, events.last) == (single.first, single.last) == (5, 6)
    assert events.events == single.events
