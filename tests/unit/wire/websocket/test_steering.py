"""How input that steers a response is handled, whenever it arrives and however the response ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import ResponsesServerEvent

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.generation.stop_point import StopPoint
from llama_stack_responses.requests.steer_input import required_input
from llama_stack_responses.wire.websocket.steering import Steering, steered
from tests.support.conform import problems

Json = dict[str, Any]

BODY: Json = {"model": "m", "input": "first", "instructions": "Be brief.", "previous_response_id": "resp_0"}
PROMPT: Json = {"id": "p", "variables": {}, "version": "2"}
COMPLETED: Json = {
    "id": "resp_1",
    "status": "completed",
    "incomplete_details": None,
    "output": [],
    "prompt": PROMPT,
}
STEERED = COMPLETED | {"status": "incomplete", "incomplete_details": {"reason": "steered"}}
CALL: Json = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"}


class SteeringHarness:
    """Steering with one running response, in the lane `a`."""

    def __init__(self, max_inputs: int = 16, most_bytes: int = 10_000, **body: Any) -> None:
        self.steering = Steering(max_inputs, most_bytes)
        self.stop_point = StopPoint()
        self.steering.began("resp_1", "a", BODY | body, self.stop_point)

    def steer(self, given: Any = "go left", target: str = "resp_1", **more: Any) -> Json:
        """Return the event that answers the input, after checking it."""
        message = {"type": "response.steer", "previous_response_id": target, "input": given, **more}
        event, lane = self.steering.steer(message, len(json.dumps(message)))
        assert problems(ResponsesServerEvent, event) == [] or event["steer"].get("input") is not None
        assert lane == ("a" if target == "resp_1" else None)
        return event

    def fails(self, code: str, *args: Any, **more: Any) -> Json:
        """Return the answer to refused input, which repeats the input without an id."""
        event = self.steer(*args, **more)
        assert (event["type"], event["error"]["code"]) == ("response.steer.failed", code)
        assert event["error"]["type"] == "invalid_request_error"
        assert len(event["error"]["message"]) > 10
        assert "id" not in event["steer"]
        return event


def test_accepted_steers_begin_next_response_in_order() -> None:
    harness = SteeringHarness()
    message = {"role": "user", "content": [{"type": "input_text", "text": "go right"}]}
    answers = [harness.steer("go left"), harness.steer([message])]
    assert [answer["type"] for answer in answers] == ["response.steer.accepted"] * 2
    assert [answer["sequence_number"] for answer in answers] == [0, 1]
    assert harness.stop_point.wanted
    output, successor = harness.steering.ended(STEERED)
    assert output == []
    assert successor
    assert successor.body == BODY | {
        "prompt": PROMPT,
        "previous_response_id": "resp_1",
        "input": [{"role": "user", "content": "go left"}, message],
    }
    assert [steer.id for steer in successor.steers] == [answer["steer"]["id"] for answer in answers]
    harness.fails("response_not_active")


def test_steered_response_that_completes_has_successor() -> None:
    harness = SteeringHarness()
    harness.steer()
    output, successor = harness.steering.ended(COMPLETED)
    assert (output, bool(successor)) == ([], True)
    harness.fails("response_already_completed")


def test_unsteered_response_has_no_successor() -> None:
    harness = SteeringHarness()
    assert harness.steering.ended(COMPLETED) == ([], None)
    assert not harness.stop_point.wanted


def test_steer_of_response_waiting_for_client_is_pending() -> None:
    """The queued input precedes the input that the response waited for, in its lane, once that is accepted."""
    harness = SteeringHarness()
    ids = [harness.steer(given)["steer"]["id"] for given in ("go left", "or right")]
    result, successor = harness.steering.ended(COMPLETED | {"output": [CALL]})
    assert successor is None
    stub = {"type": "function_call_output", "call_id": "call_1", "name": "f"}
    for event, steer_id in zip(result, ids, strict=True):
        assert problems(ResponsesServerEvent, event) == []
        assert event["type"] == "response.steer.pending"
        assert event["steer"] == {"id": steer_id, "previous_response_id": "resp_1"}
        assert (event["reason"], event["required_input"]) == ("waiting_for_required_input", [stub])
    assert harness.steering.queued("resp_1", "b") == harness.steering.queued("resp_2", "a") == []
    assert harness.steering.queued(["resp_1"], "a") == []
    steers = harness.steering.queued("resp_1", "a")
    output = stub | {"output": "4"}
    assert steered({"model": "m", "input": [output]}, steers)["input"] == [
        {"role": "user", "content": "go left"},
        {"role": "user", "content": "or right"},
        output,
    ]
    assert steered({"model": "m", "input": "four"}, steers)["input"][2] == {"role": "user", "content": "four"}
    assert len(steered({"model": "m"}, steers)["input"]) == 2
    assert steered({"model": "m", "input": 3}, steers)["input"] == 3
    assert harness.steering.queued("resp_1", "a") == steers
    harness.steering.committed("resp_1")
    assert harness.steering.queued("resp_1", "a") == []


@pytest.mark.parametrize(
    "ending",
    [
        COMPLETED | {"status": "failed"},
        COMPLETED | {"status": "cancelled"},
        COMPLETED | {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
    ],
)
def test_response_that_ends_badly_returns_steer(ending: Json) -> None:
    harness = SteeringHarness()
    accepted = harness.steer("go left")
    [event], successor = harness.steering.ended(ending)
    assert successor is None
    assert problems(ResponsesServerEvent, event) == []
    assert event["error"]["code"] == "response_not_active"
    assert event["steer"] == accepted["steer"] | {"input": "go left"}
    harness.fails("response_not_active")


def test_failed_successor_returns_steer() -> None:
    harness = SteeringHarness()
    accepted = harness.steer("go left")
    _, successor = harness.steering.ended(STEERED)
    assert successor
    [event] = harness.steering.failed(successor.steers, "successor_creation_failed", "The model is gone.")
    assert (event["error"]["code"], event["error"]["message"]) == ("successor_creation_failed", "The model is gone.")
    assert event["steer"] == accepted["steer"] | {"input": "go left"}


def test_steer_of_unknown_response_fails() -> None:
    SteeringHarness().fails("response_not_found", "x", "resp_9")


@pytest.mark.parametrize("body", [{"conversation": "conv_1"}, {"context_management": [{"type": "compaction"}]}])
def test_steer_of_unsupported_response_fails(body: Json) -> None:
    harness = SteeringHarness(**body)
    harness.fails("steering_not_supported")
    assert not harness.stop_point.wanted


def test_pending_steers_are_limited() -> None:
    harness = SteeringHarness(max_inputs=2)
    harness.steer()
    harness.steer()
    harness.fails("too_many_pending_steers")
    large = SteeringHarness(most_bytes=5_000)
    large.fails("too_many_pending_steers", "x" * 5_000)
    large.steer("x" * 3_000)
    large.fails("too_many_pending_steers", "x" * 3_000)
    large.steering.ended(STEERED)
    large.steering.began("resp_2", None, BODY, StopPoint())
    output = {"type": "response.steer", "previous_response_id": "resp_2", "input": "x" * 3_000}
    event, _ = large.steering.steer(output, 3_100)
    assert event["type"] == "response.steer.accepted"


TEXT = {"type": "input_text", "text": "x"}
INVALID: dict[str, Any] = {
    "nothing": "",
    "no message": [],
    "a number": 3,
    "no item": ["x"],
    "another role": [{"role": "system", "content": "x"}],
    "no role": [{"content": "x"}],
    "another item": [{"type": "function_call_output", "call_id": "c", "output": "x"}],
    "an id": [{"role": "user", "content": "x", "id": "msg_1"}],
    "no content": [{"role": "user"}],
    "another part": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}],
    "no part": [{"role": "user", "content": ["x"]}],
    "half a part": [{"role": "user", "content": [TEXT, {"type": "input_text"}]}],
    "half a character": "\ud800",
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_steer_input_fails(name: str) -> None:
    harness = SteeringHarness()
    event = harness.fails("invalid_input", INVALID[name])
    assert event["steer"] == {"previous_response_id": "resp_1", "input": INVALID[name]}
    assert not harness.stop_point.wanted


def test_steer_with_other_fields_fails() -> None:
    harness = SteeringHarness()
    harness.fails("invalid_input", stream_id="a")
    harness.fails("invalid_input", model="m")


@pytest.mark.parametrize(
    "event", [{}, {"previous_response_id": 3, "input": "x"}, {"previous_response_id": "resp_1"}, {"input": "x"}]
)
def test_steer_without_target_or_input_is_refused(event: Json) -> None:
    with pytest.raises(ApiError) as refused:
        SteeringHarness().steering.steer({"type": "response.steer", **event}, 100)
    assert (refused.value.status, refused.value.code) == (400, "missing_required_parameter")
    assert refused.value.param in ("previous_response_id", "input")


def test_ended_responses_are_remembered_up_to_limit() -> None:
    harness = SteeringHarness()
    harness.steer()
    harness.steering.ended(COMPLETED | {"output": [CALL]})
    for number in range(2, 400):
        harness.steering.began(f"resp_{number}", None, BODY, StopPoint())
        harness.steering.ended(COMPLETED | {"id": f"resp_{number}"})
    for target, code in (("resp_2", "response_not_found"), ("resp_399", "response_already_completed")):
        event, _ = harness.steering.steer({"type": "response.steer", "previous_response_id": target, "input": "x"}, 100)
        assert event["error"]["code"] == code
    # Queued input is not forgotten.
    assert len(harness.steering.queued("resp_1", "a")) == 1


def test_required_inputs_are_unanswered_client_calls() -> None:
    output: list[Json] = [
        {"type": "message"},
        CALL,
        CALL | {"call_id": "call_2", "status": "incomplete"},
        {"type": "custom_tool_call", "call_id": "call_3", "name": "g", "input": ""},
        {"type": "computer_call", "call_id": "call_4"},
        {"type": "shell_call", "call_id": "call_5"},
        {"type": "shell_call", "call_id": "call_6"},
        {"type": "shell_call_output", "call_id": "call_6"},
        {"type": "apply_patch_call", "call_id": "call_7"},
        {"type": "tool_search_call", "call_id": "call_8", "execution": "client"},
        {"type": "tool_search_call", "call_id": None, "execution": "server"},
        {"type": "mcp_approval_request", "id": "mcpr_1"},
        {"type": "mcp_call", "id": "mcp_1"},
        {"type": "web_search_call", "id": "ws_1"},
    ]
    assert required_input(output) == [
        {"type": "function_call_output", "call_id": "call_1", "name": "f"},
        {"type": "custom_tool_call_output", "call_id": "call_3"},
        {"type": "computer_call_output", "call_id": "call_4"},
        {"type": "shell_call_output", "call_id": "call_5"},
        {"type": "apply_patch_call_output", "call_id": "call_7"},
        {"type": "tool_search_output", "call_id": "call_8", "execution": "client"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1"},
    ]
