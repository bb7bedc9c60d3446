"""A stream that is cut anywhere continues as one valid stream, and the response that the stream describes."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.items.form import stage_events
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream import events
from llama_stack_responses.stream.assembler import Assembler
from llama_stack_responses.stream.call_kinds import ServerCall
from llama_stack_responses.stream.deltas import Annotation, Delta, Finish, Reasoning, Refusal, Text, ToolCall
from llama_stack_responses.stream.events import Event
from llama_stack_responses.stream.recovery import close_cut, left_out, repeated
from llama_stack_responses.stream.replay import replay
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.stream.transcript import Transcript
from llama_stack_responses.stream.usage import Usage
from tests.support.strict import check_stream, rebuild
from tests.unit.stream.test_assembler import CITATION, LOGPROB, ROUND, ROUNDS, STATUSES, Status, kind_of

Json = dict[str, Any]

OPENING: Final = 3
"""The number of events before the first output: created, queued, in progress."""


def fresh(output: list[Json], *, structured: bool = False, **fields: Any) -> Assembler:
    """Return an assembler of the response, in progress, with this output."""
    request = parse_create({"model": "m", "input": "hi", "background": True})
    response = new_response(request, id="resp_1", created_at=1) | {"output": output}
    assembler = Assembler(response, kind_of, **fields)
    assembler.structured = structured
    return assembler


def begun(**fields: Any) -> tuple[Assembler, list[Event]]:
    """Return an assembler whose response was queued first, and its opening events."""
    assembler = fresh([], **fields)
    assembler.response["status"] = "queued"
    opening = assembler.enqueue()
    assembler.response["status"] = "in_progress"
    return assembler, opening + assembler.proceed()


def feed(assembler: Assembler, deltas: list[Delta]) -> list[Event]:
    return [event for delta in deltas for event in assembler.feed(delta)]


def taken_up(
    output: list[Json], cut: list[Event], number: int, used: Usage, **fields: Any
) -> tuple[Assembler, list[Event]]:
    """Return another assembler that continues after `cut`, and the events that close open items."""
    output = list(output)
    closing = close_cut("resp_1", output, cut, number)
    assembler = fresh(output, **fields)
    assembler.resume(number + len(closing), used)
    return assembler, closing


def end(assembler: Assembler, status: Status) -> list[Event]:
    closing = assembler.close("completed" if status == "completed" else "incomplete")
    assembler.set_outcome(
        status,
        completed_at=2 if status == "completed" else None,
        incomplete_reason="max_output_tokens" if status == "incomplete" else None,
        error=ApiError(502, "It broke.") if status == "failed" else None,
    )
    return closing + assembler.end()


def check(events: list[Event], response: Json) -> None:
    """Assert that the events are one valid stream that builds the response, and that the response replays them."""
    final = check_stream(events)
    assert final == response
    assert rebuild(events) == final
    transcript = Transcript()
    transcript.note(events)
    assert list(replay(final, json.loads(json.dumps(transcript.marks())))) == events


@pytest.mark.extended
@settings(max_examples=200)
@given(
    rounds=ROUNDS,
    cut_off=ROUND,
    more=ROUNDS,
    status=STATUSES,
    data=st.data(),
    show_logprobs=st.booleans(),
    structured=st.booleans(),
)
def test_stream_cut_anywhere_continues(
    rounds: list[tuple[list[Delta], Finish]],
    cut_off: list[Delta],
    more: list[tuple[list[Delta], Finish]],
    status: Status,
    data: st.DataObject,
    show_logprobs: bool,
    structured: bool,
) -> None:
    fields = {"show_logprobs": show_logprobs, "structured": structured}
    first, events = begun(**fields)
    for deltas, finish in rounds:
        events += feed(first, [*deltas, finish])
    events += feed(first, cut_off)
    kept = events[: data.draw(st.integers(OPENING, len(events)), label="kept")]
    as_sent = deepcopy(kept)

    second, closing = taken_up([], kept[OPENING:], len(kept), Usage(), **fields)
    after = list(closing)
    for deltas, finish in more:
        after += feed(second, [*deltas, finish])
    after += end(second, status)
    assert kept == as_sent, "an event was changed after it went out"
    check(kept + after, second.response)


@pytest.mark.extended
@settings(max_examples=100)
@given(done=ROUND, cut_off=ROUND, more=ROUND, cuts=st.lists(st.integers(0, 40), min_size=1, max_size=3))
def test_stream_cut_repeatedly_continues_from_last_finished_round(
    done: list[Delta], cut_off: list[Delta], more: list[Delta], cuts: list[int]
) -> None:
    assembler, events = begun()
    events += feed(assembler, [*done, Finish("tool_calls", Usage(1, 2, 0, 0, 0))])
    output, numbered, used = list(assembler.response["output"]), assembler.numbered, assembler.used
    for cut in cuts:
        events += feed(assembler, cut_off)[:cut]
        assembler, closing = taken_up(output, events[numbered:], len(events), used)
        events += closing
    events += feed(assembler, [*more, Finish("stop", Usage(1, 2, 0, 0, 0))])
    events += end(assembler, "completed")
    check(events, assembler.response)
    assert assembler.response["usage"]["total_tokens"] == 6


OPEN: Final[dict[str, tuple[list[Delta], str]]] = {
    "text": ([Text("Hel", [LOGPROB]), Annotation(CITATION), Text("lo")], "message"),
    "refusal": ([Text("Well"), Refusal("I ca")], "message"),
    "reasoning": ([Reasoning("so", summary=True), Reasoning("hm")], "reasoning"),
    "call": ([ToolCall(0, "f", "call_1", '{"a"')], "function_call"),
}


@pytest.mark.parametrize("name", OPEN)
def test_cut_item_is_closed_as_incomplete(name: str) -> None:
    deltas, kind = OPEN[name]
    assembler, events = begun(show_logprobs=True)
    events += feed(assembler, deltas)
    output: list[Json] = []
    closing = close_cut("resp_1", output, events[OPENING:], len(events))
    [cut] = output
    assert (cut["type"], cut["status"]) == (kind, "incomplete")
    # As the first assembler would have closed it; but the answer is still to come, so it is commentary.
    alive = assembler.close("incomplete")
    assert [event["type"] for event in closing] == [event["type"] for event in alive]
    phase = {"phase": "commentary"} if kind == "message" else {}
    assert cut == assembler.response["output"][0] | phase


def test_complete_list_of_a_server_is_not_made_again() -> None:
    def ended(index: int, error: str | None) -> list[Event]:
        item: Json = {"type": "mcp_list_tools", "id": f"mcpl_{index}", "server_label": "s", "tools": [], "error": error}
        added, done = (make(0, "resp_1", index, item) for make in (events.output_item_added, events.output_item_done))
        return [added, done]

    text = events.output_item_added(0, "resp_1", 2, {"type": "message", "id": "msg_1"})
    assert repeated([*ended(0, None), *ended(1, "It is gone."), text]) == {1, 2}


DONE: Final[Json] = {"status": "completed"}
CUT: Final[Json] = {"status": "incomplete"}


@pytest.mark.parametrize(
    ("output", "again", "expected"),
    [
        ([CUT, DONE], {0}, [0]),
        ([DONE, CUT, DONE, CUT, DONE], {1, 2, 3}, [1, 2, 3]),
        ([DONE, CUT, DONE, CUT], {1, 2, 3}, [1]),
        ([CUT], {0}, []),
        ([], set(), []),
    ],
)
def test_response_leaves_out_all_attempts_but_the_last(
    output: list[Json], again: set[int], expected: list[int]
) -> None:
    assert [*left_out(output, again)] == expected


def test_complete_call_stays_complete_and_next_is_closed_incomplete() -> None:
    assembler, events = begun()
    events += feed(assembler, [ToolCall(0, "f", "a", "{"), ToolCall(1, "g", "b", "["), ToolCall(0, arguments="}")])
    output: list[Json] = []
    close_cut("resp_1", output, events[OPENING:], len(events))
    assert [(item["call_id"], item["arguments"], item["status"]) for item in output] == [
        ("a", "{}", "completed"),
        ("b", "[", "incomplete"),
    ]


def test_finished_items_stay_unchanged_after_cut() -> None:
    assembler, events = begun()
    events += feed(assembler, [Reasoning("hm"), Text("Hello"), Finish("stop")])
    output: list[Json] = []
    assert close_cut("resp_1", output, events[OPENING:], len(events)) == []
    assert output == assembler.response["output"]


def test_repeated_call_after_cut_gets_new_call_id() -> None:
    assembler, events = begun()
    events += feed(assembler, [ToolCall(0, "f", "call_1", "{")])
    second, closing = taken_up([], events[OPENING:], len(events), Usage())
    events += (
        closing + feed(second, [ToolCall(0, "f", "call_1", "{}"), Finish("tool_calls")]) + end(second, "completed")
    )
    first, again = second.response["output"]
    assert first["call_id"] == "call_1"
    assert again["call_id"] not in ("", "call_1")
    check(events, second.response)


def test_progress_of_repeated_hosted_call_is_emitted_once() -> None:
    item = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "in_progress",
        "action": {"type": "search", "query": "q"},
    }
    waiting = [ServerCall("web_search", "call_1", "{}", 0)]
    emitted = [stage_events("web_search_call", "searching")["searching"](7, "ws_1", 0)]
    for happened, expected in ((emitted, []), ([], emitted)):
        assembler = fresh([dict(item)])
        assembler.resume(7, Usage(), (), waiting, happened)
        assert assembler.calls.advance(0, "searching") == expected
        done = [event["type"] for event in assembler.calls.conclude(0, {})]
        assert done == ["response.web_search_call.completed", "response.output_item.done"]
