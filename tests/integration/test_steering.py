"""Steering: input for a running response ends it at a stop point, and starts the next response."""

import openai
import pytest

from tests.support.openai_client import function
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, error, reasoning, reply, text, tool_call
from tests.support.websocket_client import ENDS, WebSocketClient
from tests.support.wire import Json, Wire, output_text, roles_and_texts

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("calm")]

HELD = reply(reasoning("Left", " or right?"), text("never"), hold=2, end="hang")


def answers_of(websocket: WebSocketClient, kind: str, lane: str | None = None) -> Json:
    """Return the next steering event of this type, skipping the events of responses."""
    return websocket.until(f"response.steer.{kind}", lane)[-1]


def ended(events: list[Json]) -> Json:
    """Return the response of the first terminal event."""
    return next(event["response"] for event in events if event["type"] in ENDS)


@pytest.mark.parametrize("store", [True, False])
def test_steered_response_ends_at_a_stop_point_and_is_continued(
    stack: LiveStack, wire: Wire, upstream: Upstream, store: bool
) -> None:
    """The response ends between its reasoning and its text. The next one continues with the same settings."""
    model = f"steered-{store}"
    upstream.script(model, [HELD, reply(text("Right it is."))])
    with WebSocketClient(stack) as websocket:
        websocket.ask("a", model=f"local/{model}", input="Go.", instructions="Be brief.", temperature=0.5, store=store)
        begun = websocket.until("response.reasoning_text.delta", "a")
        first_id = begun[0]["response"]["id"]
        for given in ("Go right.", [{"role": "user", "content": [{"type": "input_text", "text": "Now."}]}]):
            websocket.steer(first_id, given)
            accepted = answers_of(websocket, "accepted", "a")
            assert accepted["steer"]["previous_response_id"] == first_id
        upstream.release(model)
        first = ended(websocket.until("response.incomplete", "a"))
        second = websocket.response("a")
    assert (first["status"], first["incomplete_details"]) == ("incomplete", {"reason": "steered"})
    assert [(item["type"], item["status"]) for item in first["output"]] == [("reasoning", "completed")]
    assert (second["previous_response_id"], output_text(second)) == (first_id, "Right it is.")
    assert (second["instructions"], second["temperature"]) == ("Be brief.", 0.5)
    cut, following = upstream.wait_for(model, 2, ended=True)
    assert cut.ended == "client_gone"
    assert roles_and_texts(following.body["messages"]) == [
        *(("system", "Be brief."), ("user", "Go."), ("user", "Go right."), ("user", "Now."))
    ]
    assert wire.get(f"/{second['id']}").status_code == (200 if store else 404)
    if store:
        assert wire.retrieve(first_id) == first == wire.replay(first_id)[-1]["response"]


def test_steering_does_not_truncate_text(stack: LiveStack, upstream: Upstream) -> None:
    """A response at its last item completes, and the next one still follows."""
    upstream.script("late", [reply(text("To the ", "end."), hold=1), reply(text("And more."))])
    with WebSocketClient(stack) as websocket:
        websocket.ask(model="local/late", input="Go.")
        first_id = websocket.until("response.output_text.delta")[0]["response"]["id"]
        websocket.steer(first_id, "More.")
        answers_of(websocket, "accepted")
        upstream.release("late")
        first = ended(websocket.until("response.completed"))
        second = websocket.response()
        assert (output_text(first), output_text(second)) == ("To the end.", "And more.")
        # The lane's next request runs after the response that steering started.
        websocket.ask(model="local/late", input="x", previous_response_id=second["id"])
        assert output_text(websocket.response()) == "And more."
    assert [role for role, _ in roles_and_texts(upstream.requests("late")[-1].body["messages"])] == [
        "user",
        "assistant",
    ] * 2 + ["user"]


def test_steering_input_waits_for_the_output_of_a_client_call(stack: LiveStack, upstream: Upstream) -> None:
    """The steering input is sent with the call's output once that arrives in the same lane."""
    called = reply(tool_call(0, "call_1", "weather", '{"city":', '"Oslo"}'), hold=1)
    upstream.script("calls", [called, reply(text("Cold."))])
    request: Json = {"model": "local/calls", "tools": [function("weather", "city")], "store": False}
    with WebSocketClient(stack) as websocket:
        websocket.ask("a", input="Weather?", **request)
        events = websocket.until("response.in_progress", "a")
        upstream.wait_for("calls", chunks=1)
        first_id = events[0]["response"]["id"]
        websocket.steer(first_id, "In Celsius.")
        steer = answers_of(websocket, "accepted", "a")["steer"]
        upstream.release("calls")
        events = websocket.until("response.steer.pending", "a")
        pending, first = events[-1], ended(events)
        assert first["status"] == "completed"
        [stub] = pending["required_input"]
        assert (pending["steer"], stub) == (
            steer,
            {"type": "function_call_output", "call_id": "call_1", "name": "weather"},
        )
        given = {key: value for key, value in stub.items() if key != "name"} | {"output": "-3"}
        websocket.ask("a", input=[given], previous_response_id=first_id, **request, temperature=0.5)
        second = websocket.response("a")
        assert (output_text(second), second["temperature"]) == ("Cold.", 0.5)
        websocket.ask("a", input=[given], previous_response_id=first_id, **request)
        websocket.response("a")
    committed, later = upstream.requests("calls")[1:]
    assert roles_and_texts(committed.body["messages"])[2:] == [("tool", "-3"), ("user", "In Celsius.")]
    assert roles_and_texts(later.body["messages"])[2:] == [("tool", "-3")]


def test_steering_fails_if_the_model_server_refuses_the_next_response(stack: LiveStack, upstream: Upstream) -> None:
    upstream.script("refuses", [HELD, error(400, "No more.")])
    with WebSocketClient(stack) as websocket:
        websocket.ask("a", model="local/refuses", input="Go.")
        first_id = websocket.until("response.reasoning_text.delta", "a")[0]["response"]["id"]
        websocket.steer(first_id, "Go right.")
        steer = answers_of(websocket, "accepted", "a")["steer"]
        upstream.release("refuses")
        failed = answers_of(websocket, "failed", "a")
    assert failed["steer"] == steer | {"input": "Go right."}
    assert failed["error"]["code"] == "successor_creation_failed"
    assert "No more." in failed["error"]["message"]


@pytest.mark.parametrize("status", [400, 500])
def test_unstored_response_is_forgotten_if_its_steered_successor_fails(
    stack: LiveStack, upstream: Upstream, status: int
) -> None:
    """As after any other failed continuation on a WebSocket."""
    model = f"forgets-{status}"
    upstream.script(model, [HELD, error(status, "No more."), reply(text("never"))])
    with WebSocketClient(stack) as websocket:
        websocket.ask("a", model=f"local/{model}", input="Go.", store=False)
        first_id = websocket.until("response.reasoning_text.delta", "a")[0]["response"]["id"]
        websocket.steer(first_id, "Go right.")
        answers_of(websocket, "accepted", "a")
        upstream.release(model)
        assert answers_of(websocket, "failed", "a")["error"]["code"] == "successor_creation_failed"
        websocket.ask("a", model=f"local/{model}", input="Again.", previous_response_id=first_id, store=False)
        assert websocket.error("a")["code"] == "previous_response_not_found"


def test_steering_of_failed_or_unknown_response_fails(stack: LiveStack, upstream: Upstream) -> None:
    upstream.script("breaks", reply(text("Half", "never"), hold=1, end="drop"))
    with WebSocketClient(stack) as websocket:
        websocket.ask(model="local/breaks", input="Go.")
        first_id = websocket.until("response.output_text.delta")[0]["response"]["id"]
        websocket.steer(first_id, "Go right.")
        upstream.release("breaks")
        assert answers_of(websocket, "failed")["error"]["code"] == "response_not_active"
        websocket.steer(first_id, "Go left.")
        assert answers_of(websocket, "failed")["error"]["code"] == "response_not_active"
        websocket.steer("resp_0", "Go left.")
        assert answers_of(websocket, "failed")["error"]["code"] == "response_not_found"
        websocket.send(type="response.steer", previous_response_id=first_id)
        assert websocket.error()["param"] == "input"


@pytest.mark.parametrize("binds", ["conversation", "context_management"])
def test_steering_of_unsupported_response_fails_and_it_completes(
    stack: LiveStack, client: openai.OpenAI, upstream: Upstream, binds: str
) -> None:
    """A response in a conversation, and one with automatic compaction, continue unchanged."""
    bound: Json = {"context_management": [{"type": "compaction", "compact_threshold": 100_000}]}
    if binds == "conversation":
        bound = {"conversation": client.conversations.create().id}
    upstream.script("bound", reply(text("One ", "answer."), hold=1))
    with WebSocketClient(stack) as websocket:
        websocket.ask(model="local/bound", input="Go.", **bound)
        first_id = websocket.until("response.output_text.delta")[0]["response"]["id"]
        websocket.steer(first_id, "Go right.")
        assert answers_of(websocket, "failed")["error"]["code"] == "steering_not_supported"
        upstream.release("bound")
        assert output_text(ended(websocket.until("response.completed"))) == "One answer."


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")
def test_sdk_steers_a_response(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("package", [HELD, reply(text("Right it is."))])
    with client.responses.connect() as connection:
        connection.response.create(model="local/package", input="Go.")
        types, ids = [], []
        for event in connection:
            types.append(event.type)
            if event.type == "response.created":
                ids.append(event.response.id)
            elif event.type == "response.reasoning_text.delta" and event.delta == "Left":
                connection.response.steer(input="Go right.", previous_response_id=ids[0])
            elif event.type == "response.steer.accepted":
                upstream.release("package")
            elif event.type == "response.completed":
                assert event.response.output_text == "Right it is."
                break
        assert types.index("response.incomplete") < types.index("response.created", 1)
        connection.response.steer(input="Too late.", previous_response_id=ids[1])
        late = connection.recv()
        assert late.type == "response.steer.failed"
        assert (late.error.code, late.steer.input) == ("response_already_completed", "Too late.")
