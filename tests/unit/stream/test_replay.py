"""Replayed events of a stored response are a valid stream that ends in exactly that response."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream.replay import replay
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.stream.usage import Usage, usage_of
from tests.support.strict import check_stream, rebuild

Json = dict[str, Any]
Drawn = st.SearchStrategy[Json]

USED: Final = usage_of(Usage(3, 4, cached_tokens=1, reasoning_tokens=2))
ENDS: Final[dict[str, Json]] = {
    "completed": {"status": "completed", "completed_at": 9, "usage": USED},
    "incomplete": {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "usage": USED},
    "failed": {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "Slow down."}},
    "cancelled": {"status": "cancelled"},
}


def finished(output: Sequence[Json], status: str = "completed") -> Json:
    request = parse_create({"model": "m", "input": "hi", "metadata": {"a": "b"}})
    return new_response(request, id="resp_1", created_at=1) | {"output": list(output)} | ENDS[status]


def text_part(text: str, annotations: Sequence[Json] = (), logprobs: Sequence[Json] = ()) -> Json:
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": list(logprobs)}


CITATION: Final[Json] = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
LOGPROB: Final[Json] = {
    "token": "a",
    "bytes": [97],
    "logprob": -0.5,
    "top_logprobs": [{"token": "b", "bytes": [98], "logprob": -1.5}],
}
MESSAGE: Final[Json] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [text_part("Hi", [CITATION], [LOGPROB]), {"type": "refusal", "refusal": "no"}],
    "phase": "final_answer",
}
REASONING: Final[Json] = {
    "id": "rs_1",
    "type": "reasoning",
    "status": "completed",
    "summary": [{"type": "summary_text", "text": "short"}],
    "content": [{"type": "reasoning_text", "text": "long"}],
}
CALL: Final[Json] = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "f",
    "arguments": "{}",
}


def test_replayed_events_are_in_order() -> None:
    events = list(replay(finished([REASONING, MESSAGE, CALL])))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.annotation.added",
        "output_text.done",
        "content_part.done",
        "content_part.added",
        "refusal.delta",
        "refusal.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


def test_first_replayed_events_reveal_nothing_of_end() -> None:
    for status in ENDS:
        begun = next(replay(finished([MESSAGE], status)))["response"]
        assert begun["status"] == "in_progress"
        assert begun["output"] == []
        assert {begun[name] for name in ("usage", "error", "incomplete_details", "completed_at")} == {None}


@pytest.mark.parametrize("status", ENDS)
def test_every_status_replays_to_valid_stream(status: str) -> None:
    response = finished([MESSAGE], status)
    events = list(replay(response))
    assert check_stream(events) == response
    assert ("error" in [event["type"] for event in events]) == (status == "failed")


def test_error_event_repeats_error_of_response() -> None:
    error = list(replay(finished([], "failed")))[-2]
    assert (error["code"], error["message"]) == ("rate_limit_exceeded", "Slow down.")


def test_empty_output_replays() -> None:
    response = finished([])
    assert check_stream(list(replay(response))) == response


TEXT: Final = st.text("ab\n<é", max_size=4)
STATUS: Final = st.sampled_from(["completed", "incomplete"])


def optional(**fields: st.SearchStrategy[Any]) -> Drawn:
    return st.fixed_dictionaries({}, optional=fields)


TEXT_PARTS: Final = st.builds(
    text_part, TEXT, st.lists(st.just(CITATION), max_size=2), st.lists(st.just(LOGPROB), max_size=2)
)
REFUSALS: Final = st.builds(lambda text: {"type": "refusal", "refusal": text}, TEXT)
SUMMARIES: Final = st.builds(lambda text: {"type": "summary_text", "text": text}, TEXT)
THOUGHTS: Final = st.builds(lambda text: {"type": "reasoning_text", "text": text}, TEXT)
MESSAGES: Final = st.builds(
    lambda parts, status, phase: {**MESSAGE, "content": parts, "status": status, **phase},
    st.lists(TEXT_PARTS | REFUSALS, max_size=3),
    STATUS,
    optional(phase=st.sampled_from(["commentary", "final_answer"])),
)
REASONINGS: Final = st.builds(
    lambda summary, more, status: {"id": "", "type": "reasoning", "status": status, "summary": summary, **more},
    st.lists(SUMMARIES, max_size=2),
    optional(content=st.lists(THOUGHTS, min_size=1, max_size=2), encrypted_content=st.just("sealed")),
    STATUS,
)
CALLS: Final = st.builds(lambda arguments, status: {**CALL, "arguments": arguments, "status": status}, TEXT, STATUS)


@settings(max_examples=150)
@given(items=st.lists(MESSAGES | REASONINGS | CALLS, max_size=5), status=st.sampled_from(sorted(ENDS)))
def test_arbitrary_response_replays(items: list[Json], status: str) -> None:
    response = finished([{**item, "id": f"item_{number}"} for number, item in enumerate(items)], status)
    before = deepcopy(response)
    events = list(replay(response))
    assert check_stream(events) == before
    assert rebuild(events) == before
    assert events[-1]["response"] == response == before
