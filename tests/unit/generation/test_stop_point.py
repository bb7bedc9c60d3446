"""The points at which a response can stop early."""

from __future__ import annotations

import pytest

from llama_stack_responses.generation.stop_point import StopPoint
from llama_stack_responses.stream.deltas import Annotation, Delta, Finish, Reasoning, Refusal, Text, ToolCall

ROUNDS: dict[str, tuple[list[Delta], list[int]]] = {
    "a text has only its beginning": ([Text("a"), Text("b"), Annotation({}), Refusal("no"), Finish("stop")], [0]),
    "between reasoning and text": ([Reasoning("a"), Reasoning("b", summary=True), Text("c"), Finish("stop")], [0, 2]),
    "before a call": ([Reasoning("a"), Text("b"), ToolCall(0, "f"), Finish("tool_calls")], [0, 1, 2]),
    "never behind a call": ([ToolCall(0, "f"), ToolCall(1, "g"), Text("b"), Reasoning("c"), Finish("stop")], [0]),
    "reasoning goes on": ([Text("a"), Reasoning("b"), Text("c"), Finish("stop")], [0, 1, 2]),
    "nothing is said": ([Finish("stop")], []),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_stop_points_are_reached_between_items(name: str) -> None:
    deltas, places = ROUNDS[name]
    for wanted_at in range(len(deltas)):
        stop_point = StopPoint()
        stop_point.begin_round()
        reached = []
        for number, delta in enumerate(deltas):
            stop_point.wanted = number >= wanted_at
            if stop_point.reached(delta):
                reached.append(number)
        assert reached == [place for place in places if place >= wanted_at]


def test_new_round_resets_stop_points() -> None:
    stop_point = StopPoint()
    stop_point.begin_round()
    assert not stop_point.reached(ToolCall(0, "f"))
    stop_point.wanted = True
    assert not stop_point.reached(Text("a"))
    stop_point.begin_round()
    assert stop_point.reached(Text("a"))
