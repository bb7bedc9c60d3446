"""The items that may be left out of a conversation that is too long."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.core.exchanges import EXCHANGE
from llama_stack_responses.items.call_pairs import check_call_pairs
from llama_stack_responses.items.truncation import PINNED, droppable, whole_turns, without

Json = dict[str, Any]


def message(role: str, text: str = "") -> Json:
    return {"type": "message", "role": role, "content": text}


def call(call_id: str) -> Json:
    return {"type": "function_call", "call_id": call_id}


def output(call_id: str) -> Json:
    return {"type": "function_call_output", "call_id": call_id}


def program(call_id: str, **more: Any) -> list[Json]:
    """A program that calls a function of the client, up to its output."""
    caller = {"caller": {"type": "program", "caller_id": call_id}}
    return [
        {"type": "program", "call_id": call_id, "code": "", **more},
        call("of it") | caller,
        output("of it") | caller,
        {"type": "program_output", "call_id": call_id, "result": ""},
    ]


USER, ANSWER, SYSTEM = message("user"), message("assistant"), message("system")
THOUGHT: Json = {"type": "reasoning"}
SEARCH: Json = {"type": "web_search_call"}
PIN = USER | {PINNED: True}


@pytest.mark.parametrize(
    ("items", "parts"),
    [
        ([], []),
        ([USER], []),
        ([SYSTEM, USER], []),
        ([USER, ANSWER, USER], [[0, 1]]),
        ([SYSTEM, USER, THOUGHT, ANSWER, USER, ANSWER, USER], [[1, 2, 3], [4, 5]]),
        ([USER, USER, ANSWER, USER], [[0], [1, 2]]),
        ([USER, SYSTEM, ANSWER, USER], [[0, 2]]),
        ([PIN, USER, ANSWER, USER], [[1, 2]]),
        # The current turn loses items round by round, and never its last round.
        ([USER, THOUGHT, call("1"), output("1"), THOUGHT, call("2"), output("2")], [[1, 2, 3]]),
        ([USER, ANSWER, call("1"), call("2"), output("1"), output("2"), call("3"), output("3")], [[1, 2, 3, 4, 5]]),
        ([USER, call("1"), output("1")], []),
        ([USER, SEARCH, SEARCH, ANSWER], [[1], [2]]),
        # A call and its output go together, whatever messages are between them.
        ([USER, call("1"), USER, output("1"), ANSWER, USER], [[0, 1, 2, 3, 4]]),
        ([USER, call("1"), USER, output("1")], []),
        ([call("1"), output("1"), call("2"), output("2")], [[0, 1]]),
    ],
)
def test_droppable_parts_are_whole_turns_and_rounds(items: list[Json], parts: list[list[int]]) -> None:
    assert droppable(items) == parts


def test_answered_user_message_is_droppable() -> None:
    items = [SYSTEM, USER, ANSWER, USER, call("1"), output("1"), ANSWER]
    assert droppable(items, to_answer=False) == [[1, 2], [3, 4, 5]]


@pytest.mark.parametrize("exchange", [{}, {EXCHANGE: {"name": "run_program", "arguments": "{}", "output": ""}}])
def test_program_is_left_out_with_its_calls_and_its_output(exchange: Json) -> None:
    ended = program("1", **exchange)
    assert droppable([USER, *ended, *program("2"), ANSWER]) == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert whole_turns([*ended[:3], USER, ended[3], USER]) == [USER]
    assert whole_turns([ended[3], USER]) == [USER]


def test_program_that_was_not_continued_is_left_out_like_one_that_ended() -> None:
    *called, _ = program("1")
    assert droppable([USER, *called, ANSWER, USER, ANSWER, USER]) == [[0, 1, 2, 3, 4], [5, 6]]
    as_the_model_sees_it = [*called, output("1")]
    assert droppable([USER, *as_the_model_sees_it, call("2"), output("2"), THOUGHT]) == [[1, 2, 3, 4], [5, 6]]


@st.composite
def conversations(draw: st.DrawFn) -> list[Json]:
    """Draw conversations in which every call has its output somewhere after it."""
    items: list[Json] = []
    waiting: list[str] = []
    for number in range(draw(st.integers(0, 20))):
        kind = draw(st.sampled_from(["user", "assistant", "system", "reasoning", "call", "output"]))
        if kind == "call":
            waiting.append(str(number % 7))
            items.append(call(waiting[-1]))
        elif kind == "output" and waiting:
            items.append(output(waiting.pop(draw(st.integers(0, len(waiting) - 1)))))
        elif kind == "reasoning":
            items.append(THOUGHT)
        elif kind != "output":
            items.append(message(kind, str(number)))
    return items + [output(each) for each in waiting]


@given(conversations())
def test_remaining_conversation_is_valid(items: list[Json]) -> None:
    parts = droppable(items)
    numbers = [number for part in parts for number in part]
    assert numbers == sorted(set(numbers))
    newest = [item for item in items if item.get("role") == "user"][-1:]
    for count in range(len(parts) + 1):
        left = without(items, parts[:count])
        check_call_pairs(left)
        assert [item for item in left if item.get("role") == "system"] == [
            item for item in items if item.get("role") == "system"
        ]
        assert [item for item in left if item.get("role") == "user"][-1:] == newest
        assert left[-1:] == items[-1:]


@given(conversations(), st.integers(0, 20))
def test_whole_turns_of_any_end_of_conversation_are_valid(items: list[Json], first: int) -> None:
    end = items[first:]
    turns = whole_turns(end)
    assert turns == end[len(end) - len(turns) :]
    check_call_pairs(turns)
    assert not turns or turns[0].get("role") == "user"


def test_whole_turns_begin_with_first_user_message_or_compaction() -> None:
    compaction = {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"}
    texts = [THOUGHT, message("assistant", "1"), message("user", "2"), message("assistant", "3"), message("user", "4")]
    assert whole_turns(texts) == texts[2:]
    assert whole_turns([texts[0], compaction, *texts[1:]]) == [compaction, *texts[1:]]
    assert whole_turns(texts[:2]) == []


def test_whole_turns_leave_out_outputs_and_approvals_without_calls_and_requests() -> None:
    question = message("user", "?")
    request = {"type": "mcp_approval_request", "id": "mcpr_1"}
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1"}
    assert whole_turns([question, output("1"), question, call("2"), output("2")]) == [question, call("2"), output("2")]
    assert whole_turns([call("1"), question, output("1"), question]) == [question]
    assert whole_turns([question, answer, question]) == [question]
    assert whole_turns([question, request, answer]) == [question, request, answer]
