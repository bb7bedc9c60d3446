"""Any deltas in any order give a valid stream, and the response that the stream describes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, Final, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream.assembler import Assembler
from llama_stack_responses.stream.call_kinds import FUNCTION, CallKind, ServerCall
from llama_stack_responses.stream.deltas import (
    Annotation,
    Delta,
    Finish,
    FinishReason,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
)
from llama_stack_responses.stream.replay import replay
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.stream.transcript import Transcript
from llama_stack_responses.stream.usage import UNKNOWN, Usage
from tests.support.strict import check_stream, rebuild, validate_response

Json = dict[str, Any]
Status = Literal["completed", "incomplete", "failed", "cancelled"]

CITATION: Final[Json] = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
LOGPROB: Final[Json] = {"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}


def kind_of(name: str) -> CallKind | None:
    return None if name.startswith("hidden") or not name else FUNCTION


class AssemblerDriver:
    """Drive an assembler and keep its events, each also as a copy from the time it was emitted."""

    def __init__(self, *, show_logprobs: bool = False, structured: bool = False) -> None:
        response = new_response(parse_create({"model": "m", "input": "hi"}), id="resp_1", created_at=1)
        self.assembler = Assembler(response, kind_of, show_logprobs=show_logprobs)
        self.assembler.structured = structured
        self.events: list[Json] = []
        self._as_sent: list[Json] = []
        self._take(self.assembler.start())

    def feed(self, *deltas: Delta) -> list[Json]:
        """Return the events that these deltas cause."""
        return [event for delta in deltas for event in self._take(self.assembler.feed(delta))]

    def end(self, status: Status = "completed", error: ApiError | None = None) -> Json:
        """End the response as the loop does. Return it after checking the invariants of every stream."""
        self._take(self.assembler.close("completed" if status == "completed" else "incomplete"))
        self.assembler.set_outcome(
            status,
            completed_at=2 if status == "completed" else None,
            incomplete_reason="max_output_tokens" if status == "incomplete" else None,
            error=(error or ApiError(502, "It broke.")) if status == "failed" else None,
        )
        self._take(self.assembler.end())
        return self._checked()

    def _take(self, events: list[Json]) -> list[Json]:
        self.events += events
        self._as_sent += deepcopy(events)
        for event in events:
            if event["type"] == "response.output_item.done":
                assert self.assembler.response["output"][event["output_index"]] == event["item"]
        return events

    def _checked(self) -> Json:
        final = check_stream(self.events)
        assert final == self.assembler.response
        assert rebuild(self.events) == final
        assert self.events == self._as_sent, "an event was changed after it went out"
        transcript = Transcript()
        for event in self.events:
            transcript.note([event])
        assert list(replay(final, json.loads(json.dumps(transcript.marks())))) == self.events
        validate_response(final)
        return final


def run(*deltas: Delta, status: Status = "completed", show_logprobs: bool = False) -> list[Json]:
    """Return the output of one response built from these deltas."""
    driver = AssemblerDriver(show_logprobs=show_logprobs)
    driver.feed(*deltas)
    output: list[Json] = driver.end(status)["output"]
    return output


def types(events: Iterable[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def kinds(output: Iterable[Json]) -> list[str]:
    """Return one word per item: the phase of a message, the type of any other item."""
    return [item.get("phase") or item["type"] for item in output]


def texts(item: Json, holder: str = "content") -> list[str]:
    return [part.get("text") or part["refusal"] for part in item[holder]]


STOP: Final = Finish("stop")


# Text and refusals


def test_text_emits_its_events() -> None:
    driver = AssemblerDriver()
    assert types(driver.feed(Text("Hel"))) == ["output_item.added", "content_part.added", "output_text.delta"]
    assert types(driver.feed(Text("lo"))) == ["output_text.delta"]
    assert types(driver.feed(STOP)) == ["output_text.done", "content_part.done", "output_item.done"]
    [message] = driver.end()["output"]
    assert message["id"].startswith("msg_")
    assert (message["role"], message["status"], message["phase"]) == ("assistant", "completed", "final_answer")
    assert message["content"] == [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}]


def test_refusal_is_separate_part() -> None:
    [message] = run(Refusal("I ca"), Refusal("n't."), STOP)
    assert message["content"] == [{"type": "refusal", "refusal": "I can't."}]


def test_text_and_refusal_are_parts_of_one_message() -> None:
    [message] = run(Text("Well"), Refusal("no"), Text("but"), Text("..."), STOP)
    assert [part["type"] for part in message["content"]] == ["output_text", "refusal", "output_text"]
    assert texts(message) == ["Well", "no", "but..."]


def test_no_delta_gives_no_item() -> None:
    assert run() == run(STOP) == []


# Reasoning


def test_reasoning_emits_its_events() -> None:
    driver = AssemblerDriver()
    opened = driver.feed(Reasoning("h"), Reasoning("m"))
    assert types(opened) == ["output_item.added", "content_part.added", *["reasoning_text.delta"] * 2]
    assert types(driver.feed(STOP)) == ["reasoning_text.done", "content_part.done", "output_item.done"]
    [item] = driver.end()["output"]
    assert item["id"].startswith("rs_")
    assert item["status"] == "completed"
    assert item["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert item["summary"] == []


def test_summary_alone_has_no_content() -> None:
    [item] = run(Reasoning("h", summary=True), Reasoning("m", summary=True), STOP)
    assert item["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert "content" not in item


def test_content_and_summary_have_separate_indices() -> None:
    driver = AssemblerDriver()
    driver.feed(Reasoning("a"), Reasoning("A", summary=True), Reasoning("b"), Reasoning("B", summary=True), STOP)
    [item] = driver.end()["output"]
    assert (texts(item), texts(item, "summary")) == (["a", "b"], ["A", "B"])
    added = [event for event in driver.events if event["type"].endswith("part.added")]
    assert [(event.get("content_index"), event.get("summary_index")) for event in added] == [
        (0, None),
        (None, 0),
        (1, None),
        (None, 1),
    ]


def test_reasoning_keeps_its_position_in_output() -> None:
    output = run(Reasoning("1"), Text("2"), Reasoning("3"), Text("4"), STOP)
    assert kinds(output) == ["reasoning", "commentary", "reasoning", "final_answer"]
    assert [texts(item) for item in output] == [["1"], ["2"], ["3"], ["4"]]


def test_reasoning_after_last_text_keeps_final_answer() -> None:
    output = run(Text("answer"), Reasoning("afterthought"), STOP)
    assert kinds(output) == ["final_answer", "reasoning"]


def test_refusal_after_reasoning_is_separate_message() -> None:
    assert kinds(run(Text("a"), Reasoning("b"), Refusal("c"), STOP)) == ["commentary", "reasoning", "final_answer"]


def test_text_after_reasoning_begins_new_message() -> None:
    driver = AssemblerDriver()
    driver.feed(Text("a"), Reasoning("b"))
    assert types(driver.feed(Text("c"))) == [
        *("output_text.done", "content_part.done", "output_item.done"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
    ]


# Tool calls


def call(key: object, name: str = "", call_id: str = "", arguments: str = "") -> ToolCall:
    return ToolCall(str(key), name, call_id, arguments)


def test_call_emits_its_events() -> None:
    driver = AssemblerDriver()
    assert driver.feed(call(0, "f", "call_a")) == []
    assert types(driver.feed(call(0, arguments="{"))) == ["output_item.added", "function_call_arguments.delta"]
    assert types(driver.feed(call(0, arguments="}"))) == ["function_call_arguments.delta"]
    assert types(driver.feed(STOP)) == ["function_call_arguments.done", "output_item.done"]
    [item] = driver.end()["output"]
    assert item["id"].startswith("fc_")
    assert item | {"id": ""} == {
        "id": "",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_a",
        "name": "f",
        "arguments": "{}",
    }


def test_parallel_calls_are_separated() -> None:
    output = run(
        call(0, "f", "a"),
        call(1, "g", "b"),
        call(1, arguments="[1"),
        call(0, arguments="[0"),
        call(1, arguments="]"),
        call(0, arguments="]"),
        Finish("tool_calls"),
    )
    assert {(item["name"], item["call_id"], item["arguments"]) for item in output} == {
        ("f", "a", "[0]"),
        ("g", "b", "[1]"),
    }


def test_call_is_closed_when_next_one_begins() -> None:
    driver = AssemblerDriver()
    driver.feed(call(0, "f", "a", '{"a": "}'), call(0, arguments='\\"{"}'))
    events = driver.feed(call(1, "g", "b", "{"))
    assert types(events) == [
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
    ]
    driver.feed(call(1, arguments="}"), STOP)
    assert [item["arguments"] for item in driver.end()["output"]] == ['{"a": "}\\"{"}', "{}"]


def test_call_waits_until_previous_one_is_complete() -> None:
    driver = AssemblerDriver()
    driver.feed(call(0, "f", "a", "{"))
    assert driver.feed(call(1, "g", "b", "{"), call(2, "h", "c", "{}"), call(1, arguments="}")) == []
    assert types(driver.feed(call(0, arguments="}"))) == [
        "function_call_arguments.delta",
        *("function_call_arguments.done", "output_item.done", "output_item.added"),
        *("function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done", "output_item.added"),
        "function_call_arguments.delta",
    ]
    driver.feed(STOP)
    assert [item["call_id"] for item in driver.end()["output"]] == ["a", "b", "c"]


def test_incomplete_call_is_closed_at_end_before_next() -> None:
    output = run(call(0, "f", "a", "{"), call(1, "g", "b", "{}"), Finish("length"), status="incomplete")
    assert [(item["arguments"], item["status"]) for item in output] == [("{", "incomplete"), ("{}", "incomplete")]


def test_fragment_of_completed_call_is_dropped() -> None:
    output = run(call(0, "f", "a", "{}"), call(1, "g", "b", "{"), call(0, arguments=" "), call(1, arguments="}"), STOP)
    assert [item["arguments"] for item in output] == ["{}", "{}"]


@pytest.mark.parametrize("word", [Text("So."), Reasoning("So."), Refusal("No.")])
def test_text_waits_until_previous_call_is_complete(word: Delta) -> None:
    driver = AssemblerDriver()
    driver.feed(call(0, "f", "a", "{"))
    assert driver.feed(word) == []
    assert types(driver.feed(call(0, arguments="}")))[:4] == [
        *("function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "output_item.added")
    ]
    driver.feed(STOP)
    assert len(driver.end()["output"]) == 2


def test_text_after_incomplete_call_is_emitted_at_end() -> None:
    output = run(call(0, "f", "a"), Text("So."), Annotation(CITATION), Reasoning("Hm."), STOP)
    assert kinds(output) == ["function_call", "commentary", "reasoning"]
    assert output[1]["content"][0]["annotations"] == [CITATION]


def test_late_call_id_is_used() -> None:
    [item] = run(call(0, "f"), call(0, call_id="late"), call(0, arguments="{}"), STOP)
    assert item["call_id"] == "late"


def test_call_id_after_added_event_is_ignored() -> None:
    driver = AssemblerDriver()
    [added, _] = driver.feed(call(0, "f", arguments="{"))
    driver.feed(call(0, call_id="too late", arguments="}"), STOP)
    [item] = driver.end()["output"]
    assert item["call_id"] == added["item"]["call_id"]
    assert item["call_id"].startswith("call_")


def test_missing_call_id_is_generated() -> None:
    output = run(call(0, "f", arguments="{}"), call(1, "f", arguments="{}"), STOP)
    assert len({item["call_id"] for item in output}) == 2
    assert all(item["call_id"].startswith("call_") for item in output)


def test_repeated_call_id_is_replaced() -> None:
    first, second, third = run(
        *(call(0, "f", "same", "{}"), call(1, "f", "same", "{}"), Finish("tool_calls")),
        *(call(0, "f", "same", "{}"), Finish("tool_calls")),
    )
    assert first["call_id"] == "same"
    assert len({first["call_id"], second["call_id"], third["call_id"]}) == 3


@pytest.mark.parametrize(
    "pieces",
    [
        ["get_weather"],
        ["get_", "weather"],
        ["get_", "", "weather"],
        ["get_weather", "get_weather"],
        ["get_", "weather", "get_weather"],
    ],
)
def test_name_in_fragments_or_repeated_is_joined(pieces: list[str]) -> None:
    [item] = run(*(call(0, piece, "a") for piece in pieces), call(0, arguments="{"), call(0, arguments="}"), STOP)
    assert item["name"] == "get_weather"


def test_name_repeated_in_every_fragment_is_kept_once() -> None:
    [item] = run(*(call(0, "f", "a", fragment) for fragment in ("{", "1", "}")), STOP)
    assert (item["name"], item["arguments"]) == ("f", "{1}")


def test_arguments_before_name_are_kept() -> None:
    driver = AssemblerDriver()
    assert driver.feed(call(0, arguments="{"), call(0, arguments='"a"'), call(0, "f")) == []
    events = driver.feed(call(0, arguments=": 1}"))
    assert types(events) == ["output_item.added", *["function_call_arguments.delta"] * 3]
    driver.feed(STOP)
    [item] = driver.end()["output"]
    assert (item["name"], item["arguments"]) == ("f", '{"a": 1}')


def test_name_after_all_arguments_is_used() -> None:
    [item] = run(call(0, arguments="{}"), call(0, "f", "a"), STOP)
    assert (item["name"], item["call_id"], item["arguments"]) == ("f", "a", "{}")


def test_call_without_name_is_hidden() -> None:
    driver = AssemblerDriver()
    driver.feed(call(0, "", "a", "{}"), STOP)
    assert driver.assembler.calls.server_calls == [ServerCall("", "a", "{}")]
    assert driver.end()["output"] == []


@pytest.mark.parametrize("arguments", ["", " "])
def test_missing_arguments_become_empty_object(arguments: str) -> None:
    driver = AssemblerDriver()
    driver.feed(call(0, "f", "a", arguments), STOP)
    [item] = driver.end()["output"]
    assert (item["status"], item["arguments"].strip()) == ("completed", "{}")
    assert driver.feed(call(0, "hidden", "b", arguments), STOP) == []
    assert driver.assembler.calls.server_calls[0].arguments.strip() in ("{}", "")


def test_cut_off_call_without_arguments_has_none() -> None:
    [item] = run(call(0, "f", "a"), Finish("length"), status="incomplete")
    assert (item["status"], item["arguments"]) == ("incomplete", "")


def test_fragment_with_only_a_call_id_begins_no_call() -> None:
    driver = AssemblerDriver()
    driver.feed(call(0, "", "a"), STOP)
    assert driver.assembler.calls.server_calls == driver.end()["output"] == []


def test_hidden_call_emits_no_events_but_closes_text() -> None:
    driver = AssemblerDriver()
    driver.feed(Text("Let me see."))
    assert types(driver.feed(call(0, "hidden", "a"))) == ["output_text.done", "content_part.done", "output_item.done"]
    assert driver.feed(call(0, arguments="{"), call(0, arguments="}"), Finish("tool_calls")) == []
    assert driver.assembler.calls.server_calls == [ServerCall("hidden", "a", "{}")]
    assert kinds(driver.end()["output"]) == ["commentary"]


def test_hidden_and_shown_calls_are_separated() -> None:
    driver = AssemblerDriver()
    driver.feed(
        call(0, "hidden", "a", "1"), call(1, "f", "b", "2"), call(0, arguments="1"), call(1, arguments="2"), STOP
    )
    assert driver.assembler.calls.server_calls == [ServerCall("hidden", "a", "11")]
    [item] = driver.end()["output"]
    assert (item["call_id"], item["arguments"]) == ("b", "22")


# Phases


def test_text_before_calls_is_commentary() -> None:
    assert kinds(run(Text("a"), call(0, "f", "c", "{}"), STOP)) == ["commentary", "function_call"]


def test_text_after_calls_is_commentary() -> None:
    assert kinds(run(call(0, "f", "c", "{}"), Text("a"), STOP)) == ["function_call", "commentary"]


def test_text_before_reasoning_and_calls_is_commentary() -> None:
    output = run(Text("a"), Reasoning("b"), call(0, "f", "c", "{}"), STOP)
    assert kinds(output) == ["commentary", "reasoning", "function_call"]


def test_each_round_has_its_own_phases() -> None:
    output = run(Text("a"), call(0, "hidden", "c", "{}"), Finish("tool_calls"), Text("b"), STOP)
    assert kinds(output) == ["commentary", "final_answer"]


# Annotations and logprobs


def test_annotations_are_numbered_per_part() -> None:
    driver = AssemblerDriver()
    driver.feed(
        Text("a"), Annotation(CITATION), Annotation(CITATION), Refusal("b"), Text("c"), Annotation(CITATION), STOP
    )
    [message] = driver.end()["output"]
    assert [len(part.get("annotations", ())) for part in message["content"]] == [2, 0, 1]
    added = [event for event in driver.events if event["type"] == "response.output_text.annotation.added"]
    assert [(event["content_index"], event["annotation_index"]) for event in added] == [(0, 0), (0, 1), (2, 0)]


def test_annotation_after_reasoning_belongs_to_earlier_text() -> None:
    message, _ = run(Text("a"), Reasoning("b"), Annotation(CITATION), STOP)
    assert message["content"][0]["annotations"] == [CITATION]


@pytest.mark.parametrize("before", [[], [Reasoning("a")], [Refusal("a")]])
def test_annotation_without_text_is_dropped(before: list[Delta]) -> None:
    driver = AssemblerDriver()
    driver.feed(*before)
    assert driver.feed(Annotation(CITATION)) == []
    driver.end()


def test_positions_of_citation_are_filled_in() -> None:
    on_text, at_text = (
        {"type": "url_citation", "url": "u", "title": "t"},
        {"type": "file_citation", "file_id": "f", "filename": "n"},
    )
    [message] = run(Text("ab"), Text("cde"), Annotation(on_text, 3), Annotation(at_text, 0), STOP)
    assert message["content"][0]["annotations"] == [
        on_text | {"start_index": 2, "end_index": 5},
        at_text | {"index": 5},
    ]
    assert "start_index" not in on_text


def test_logprobs_are_shown_if_requested() -> None:
    driver = AssemblerDriver(show_logprobs=True)
    driver.feed(Text("a", [LOGPROB]), Text("b", None), Text("c", [LOGPROB, LOGPROB]), STOP)
    [message] = driver.end()["output"]
    assert message["content"][0]["logprobs"] == [LOGPROB] * 3
    deltas = [event for event in driver.events if event["type"] == "response.output_text.delta"]
    assert [len(event["logprobs"]) for event in deltas] == [1, 0, 2]


def test_logprobs_are_hidden_if_not_requested() -> None:
    [message] = run(Text("a", [LOGPROB]), STOP)
    assert message["content"][0]["logprobs"] == []


# Rounds, usage and ends


def test_usage_sums_all_rounds_with_details() -> None:
    driver = AssemblerDriver()
    assert driver.assembler.response["usage"] is None
    driver.feed(
        Text("a"), Finish("tool_calls", Usage(10, 5, 4, 3, 2)), Text("b"), Finish("stop", Usage(100, 50, 40, 30, 20))
    )
    assert driver.end()["usage"] == {
        "input_tokens": 110,
        "input_tokens_details": {"cached_tokens": 44, "cache_write_tokens": 33},
        "output_tokens": 55,
        "output_tokens_details": {"reasoning_tokens": 22},
        "total_tokens": 165,
    }


@pytest.mark.parametrize("unknown", [0, 1, 2])
def test_usage_is_null_if_that_of_one_round_is_unknown(unknown: int) -> None:
    driver = AssemblerDriver()
    for number in range(3):
        driver.feed(Text("a"), Finish("tool_calls", UNKNOWN if number == unknown else Usage(10, 5)))
    assert driver.end()["usage"] is None
    assert (driver.assembler.used.input_tokens, driver.assembler.used.output_tokens) == (20, 10)


@pytest.mark.parametrize("reason", ["length", "content_filter", "steered"])
def test_cut_off_items_stay_incomplete(reason: FinishReason) -> None:
    output = run(Reasoning("a"), Text("b"), call(0, "f", "c", "{"), Finish(reason), status="incomplete")
    assert [item["status"] for item in output] == ["completed", "completed", "incomplete"]
    [message] = run(Text("a"), Finish(reason), status="incomplete")
    assert (message["status"], texts(message)) == ("incomplete", ["a"])


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_early_end_closes_open_items(status: Status) -> None:
    output = run(Text("a"), Reasoning("b"), call(0, "f", "c", "{"), call(1, "f"), status=status)
    assert kinds(output) == ["commentary", "reasoning", "function_call", "function_call"]
    assert [item["status"] for item in output] == ["completed", "completed", "incomplete", "incomplete"]


def test_failure_is_in_error_event_and_response() -> None:
    driver = AssemblerDriver()
    driver.feed(Text("a"))
    final = driver.end("failed", ApiError(400, "Too long.", code="context_length_exceeded", param="input"))
    error = driver.events[-2]
    assert (error["code"], error["message"], error["param"]) == ("context_length_exceeded", "Too long.", "input")
    assert final["error"] == {"code": "context_length_exceeded", "message": "Too long.", "param": "input"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError(400, "What?", code="invalid_file"), "invalid_prompt"),
        (ApiError(404, "Who?", code="model_not_found"), "invalid_prompt"),
        (ApiError(429, "Slow down.", code="busy"), "rate_limit_exceeded"),
        (ApiError(403, "No."), "server_error"),
        (ApiError(424, "Away.", type="external_connector_error", code="http_error"), "server_error"),
        (ApiError(502, "Away.", code="500"), "server_error"),
    ],
    ids=lambda each: getattr(each, "message", each),
)
def test_failure_code_is_one_of_openais(error: ApiError, code: str) -> None:
    driver = AssemblerDriver()
    final = driver.end("failed", error)
    assert (final["error"]["code"], driver.events[-2]["code"]) == (code, code)


@pytest.mark.parametrize(
    ("status", "event"),
    [("completed", "completed"), ("incomplete", "incomplete"), ("failed", "failed"), ("cancelled", "incomplete")],
)
def test_each_status_has_its_terminal_event(status: Status, event: str) -> None:
    driver = AssemblerDriver()
    driver.end(status)
    assert driver.events[-1]["type"] == f"response.{event}"


def test_later_settle_overrides_earlier_one() -> None:
    driver = AssemblerDriver()
    driver.feed(Text("a"), STOP)
    driver.assembler.set_outcome("completed", completed_at=5)
    final = driver.end("failed")
    assert (final["status"], final["completed_at"], final["error"]["code"]) == ("failed", None, "server_error")


def test_same_key_in_next_round_is_another_call() -> None:
    first, second = run(call(0, "f", "a", "1"), Finish("tool_calls"), call(0, "g", "b", "2"), STOP)
    assert (first["name"], first["arguments"], second["name"], second["arguments"]) == ("f", "1", "g", "2")


# Arbitrary deltas

SHORT: Final = st.text("ab<é\n", max_size=3)
LOGPROBS: Final = st.none() | st.lists(st.just(LOGPROB), max_size=2)
USAGE: Final = st.builds(Usage, *[st.integers(0, 9)] * 5)
CALLS: Final = st.builds(
    ToolCall,
    key=st.integers(0, 2),
    name=st.sampled_from(["", "f", "g", "hidden"]),
    call_id=st.sampled_from(["", "call_1", "call_2"]),
    arguments=SHORT,
)
PIECES: Final = (
    st.builds(Text, SHORT, LOGPROBS)
    | st.builds(Refusal, SHORT)
    | st.builds(Reasoning, SHORT, summary=st.booleans())
    | st.builds(Annotation, st.just(CITATION))
    | CALLS
)
REASONS: Final = st.sampled_from(["stop", "tool_calls", "length", "content_filter", "steered"])
ROUND: Final = st.lists(PIECES, max_size=12)
ROUNDS: Final = st.lists(st.tuples(ROUND, st.builds(Finish, REASONS, USAGE)), max_size=3)
STATUSES: Final = st.sampled_from(["completed", "incomplete", "failed", "cancelled"])


@settings(max_examples=150)
@given(rounds=ROUNDS, cut_off=ROUND, status=STATUSES, show_logprobs=st.booleans(), structured=st.booleans())
def test_arbitrary_deltas_give_valid_stream(
    rounds: list[tuple[list[Delta], Finish]],
    cut_off: list[Delta],
    status: Status,
    show_logprobs: bool,
    structured: bool,
) -> None:
    driver = AssemblerDriver(show_logprobs=show_logprobs, structured=structured)
    for deltas, finish in rounds:
        driver.feed(*deltas, finish)
        assert all(item["status"] != "in_progress" for item in driver.assembler.response["output"])
    driver.feed(*cut_off)
    output = driver.end(status)["output"]
    fed = [delta for deltas, _ in rounds for delta in deltas] + cut_off
    assert_nothing_is_lost(fed, output)
    call_ids = [item["call_id"] for item in output if item["type"] == "function_call"]
    call_ids += [hidden.call_id for hidden in driver.assembler.calls.server_calls]
    assert len(call_ids) == len(set(call_ids))
    assert all(call_ids)
    assert_arguments([*(deltas for deltas, _ in rounds), cut_off], output, driver.assembler.calls.server_calls)


JSON_CALLS: Final = st.builds(
    ToolCall,
    key=st.integers(0, 2),
    name=st.sampled_from(["", "f", "g", "hidden"]),
    arguments=st.sampled_from(["", "{", "}", '"', "\\", '{"a":', "1}", "{}", "[", "]"]),
)


@settings(max_examples=150)
@given(pieces=st.lists(PIECES | JSON_CALLS, max_size=16))
def test_items_of_any_deltas_never_overlap(pieces: list[Delta]) -> None:
    driver = AssemblerDriver()
    driver.feed(*pieces, STOP)
    assert_nothing_is_lost(pieces, driver.end()["output"])


def assert_nothing_is_lost(fed: Sequence[Delta], output: Sequence[Json]) -> None:
    """Assert that all text and reasoning is in the output, in order and once."""

    def shown(item_type: str, holder: str, part_type: str) -> str:
        parts = [part for item in output if item["type"] == item_type for part in item.get(holder, ())]
        return "".join(part.get("text", part.get("refusal")) for part in parts if part["type"] == part_type)

    assert shown("message", "content", "output_text") == "".join(d.text for d in fed if isinstance(d, Text))
    assert shown("message", "content", "refusal") == "".join(d.text for d in fed if isinstance(d, Refusal))
    reasoning = [d for d in fed if isinstance(d, Reasoning)]
    assert shown("reasoning", "content", "reasoning_text") == "".join(d.text for d in reasoning if not d.summary)
    assert shown("reasoning", "summary", "summary_text") == "".join(d.text for d in reasoning if d.summary)


def assert_arguments(rounds: Sequence[list[Delta]], output: Sequence[Json], hidden: Sequence[ServerCall]) -> None:
    """Assert that every non-empty key of every round is one call, shown or hidden, with all of its arguments."""
    wanted: list[str] = []
    for deltas in rounds:
        calls: dict[Any, str] = {}
        names: dict[Any, str] = {}
        for delta in deltas:
            if isinstance(delta, ToolCall):
                calls[delta.key] = calls.get(delta.key, "") + delta.arguments
                names[delta.key] = names.get(delta.key, "") + delta.name
        wanted += [arguments for key, arguments in calls.items() if arguments or names[key]]
    created = [item["arguments"] for item in output if item["type"] == "function_call"]
    created += [each.arguments for each in hidden]
    # A call without arguments gets an empty object.
    assert sorted(text.strip() or "{}" for text in created) == sorted(text.strip() or "{}" for text in wanted)


@settings(max_examples=60)
@given(rounds=st.lists(ROUND, min_size=1, max_size=3))
def test_round_has_one_final_answer_and_only_without_calls(rounds: list[list[Delta]]) -> None:
    driver = AssemblerDriver()
    for deltas in rounds:
        begin = len(driver.assembler.response["output"])
        driver.feed(*deltas, STOP)
        messages = [item for item in driver.assembler.response["output"][begin:] if item["type"] == "message"]
        called = any(isinstance(delta, ToolCall) for delta in deltas)
        answers = [message["phase"] == "final_answer" for message in messages]
        assert answers == [not called and message is messages[-1] for message in messages]
    driver.end()


@pytest.mark.parametrize(
    ("text", "phase"),
    [("Let me look.", "commentary"), ('{"a": 1}', None), ("  [1]", None), (" -1", None), ('"a"', None)],
)
def test_preamble_to_json_is_commentary_from_first_delta(text: str, phase: str | None) -> None:
    driver = AssemblerDriver(structured=True)
    [added, *_] = driver.feed(Text(text))
    driver.feed(Finish("stop"))
    assert added["item"].get("phase") == phase
    [message] = driver.end()["output"]
    assert message["phase"] == "final_answer"  # nothing followed it


def test_whitespace_before_json_is_part_of_answer() -> None:
    driver = AssemblerDriver(structured=True, show_logprobs=True)
    assert driver.feed(Text("\n", [LOGPROB]), Text("\n")) == []
    [added, _, delta] = driver.feed(Text('{"a"', [LOGPROB]))
    assert "phase" not in added["item"]
    assert delta["delta"] == '\n\n{"a"'
    driver.feed(Text(": 1}"), Finish("stop"))
    [message] = driver.end()["output"]
    assert message["content"][0]["text"] == '\n\n{"a": 1}'
    assert message["content"][0]["logprobs"] == [LOGPROB, LOGPROB]


def test_whitespace_before_call_is_commentary() -> None:
    driver = AssemblerDriver(structured=True)
    events = driver.feed(Text("\n\n"), call(0, "f", "1", "{}"), Finish("tool_calls"))
    assert events[0]["item"]["phase"] == "commentary"
    message, _ = driver.end()["output"]
    assert (message["phase"], message["content"][0]["text"]) == ("commentary", "\n\n")


def test_whitespace_alone_is_final_answer() -> None:
    driver = AssemblerDriver(structured=True)
    driver.feed(Text("\n"), Finish("stop"))
    [message] = driver.end()["output"]
    assert (message["phase"], message["content"][0]["text"]) == ("final_answer", "\n")


class CountingStr(str):
    """A text that counts how often its length is taken."""

    __slots__ = ()
    measured = 0

    def __len__(self) -> int:
        CountingStr.measured += 1
        return super().__len__()


def test_signatures_and_citations_measure_each_fragment_a_bounded_number_of_times() -> None:
    driver = AssemblerDriver()
    for _ in range(300):
        driver.feed(
            Reasoning(CountingStr("hm")), Reasoning("", signature="s"), Reasoning(CountingStr("so"), summary=True)
        )
    for _ in range(300):
        driver.feed(
            Text(CountingStr("word")), Annotation({"type": "file_citation", "file_id": "f", "filename": "f"}, 0)
        )
    CountingStr.measured = 0
    driver.feed(Reasoning("", signature="s"))
    driver.feed(Annotation(CITATION, 4))
    driver.end()
    assert CountingStr.measured < 5_000
