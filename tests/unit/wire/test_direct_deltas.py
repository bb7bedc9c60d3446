"""Deltas of a text that arrive together are written to the client as their events would be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llama_stack_responses.core.json_blocks import BLOCK_BYTES
from llama_stack_responses.stream import events
from llama_stack_responses.stream.delta_forms import DeltaForm, DeltaRun
from llama_stack_responses.wire import http_responses, sse
from llama_stack_responses.wire.websocket import connection

LIKE = events.output_text_delta(7, "msg_%d", 1, 2, "a", [])
OTHER = events.output_text_delta(12, "msg_%d", 1, 3, "a", [])
TEXTS = ["a%", "\u00e9\u2028", '"\\']


class Client:
    """A client that takes everything."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def write(self, data: Any) -> bool:
        self.taken.append(data)
        return True


def run(*texts: str, like: events.Event = LIKE) -> DeltaRun:
    return DeltaRun(DeltaForm(like), 9, list(texts))


def test_run_is_written_as_frames_of_its_events() -> None:
    client = Client()
    writer = http_responses._DirectEvents(client)  # type: ignore[arg-type]
    for each in (run(*TEXTS), run(*TEXTS, like=OTHER), run(*TEXTS, like=OTHER | {"sequence_number": 8})):
        assert writer.write(each)
        assert client.taken.pop() == sse.encode(each.events())


def test_large_run_is_not_written_as_frames() -> None:
    client = Client()
    assert not http_responses._DirectEvents(client).write(run("a" * BLOCK_BYTES, "b" * BLOCK_BYTES))  # type: ignore[arg-type]
    assert client.taken == []


@pytest.mark.parametrize("named", [{}, {"stream_id": "lane%1"}])
def test_run_is_written_as_messages_of_its_events(named: events.Event) -> None:
    client = Client()
    writer = connection._DirectMessages(client, named)  # type: ignore[arg-type]
    for each in (run(*TEXTS), run(*TEXTS, like=OTHER)):
        assert writer.write(each)
        assert [json.loads(message) for message in client.taken.pop()] == [event | named for event in each.events()]


def test_large_run_is_not_written_as_messages() -> None:
    client = Client()
    assert not connection._DirectMessages(client, {}).write(run("a", "b" * BLOCK_BYTES))  # type: ignore[arg-type]
    assert client.taken == []
