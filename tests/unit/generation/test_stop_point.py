"""Where a response can end before its time."""

from __future__ import annotations

import pytest

from llama_stack_responses.core.stream.deltas import Annotation, Delta, Finish, Reasoning, Refusal, Text, ToolCall
from llama_stack_responses.generation.stop_point import Boundary

ROUNDS: dict[str, tuple[list[Delta], list[int]]] = {
    "a text has only its beginning": ([Text("a"), Text("b"), Annotation({}), Refusal("no"), Finish("stop")], [0]),
    "between reasoning and text": ([Reasoning("a"), Reasoning("b", summary=True), Text("c"), Finish("stop")], [0, 2]),
    "before a call": ([Reasoning("a"), Text("b"), ToolCall(0, "f"), Finish("tool_calls")], [0, 1, 2]),
    "never behind a call": ([ToolCall(0, "f"), ToolCall(1, "g"), Text("b"), Reasoning("c"), Finish("stop")], [0]),
    "reasoning goes on": ([Text("a"), Reasoning("b"), Text("c"), Finish("stop")], [0, 1, 2]),
    "nothing is said": ([Finish("stop")], []),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_the_places(name: str) -> None:
    deltas, places = ROUNDS[name]
    for wanted_at in range(len(deltas)):
        boundary = Boundary()
        boundary.begin_round()
        reached = []
        for number, delta in enumerate(deltas):
            boundary.wanted = number >= wanted_at
            if boundary.reached(delta):
                reached.append(number)
        assert reached == [place for place in places if place >= wanted_at]


def test_a_round_begins_anew() -> None:
    boundary = Boundary()
    boundary.begin_round()
    assert not boundary.reached(ToolCall(0, "f"))
    boundary.wanted = True
    assert not boundary.reached(Text("a"))
    boundary.begin_round()
    assert boundary.reached(Text("a"))
