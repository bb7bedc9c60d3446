"""Responses over one WebSocket: lanes, unstored responses, errors, and disconnects."""

import asyncio
import json
from functools import partial

import openai
import pytest
from openai.lib.responses_websocket import (
    ResponsesWebSocketAccumulator,
    ResponsesWebSocketLimits,
    ResponsesWebSocketSession,
)
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.support.openai_client import function
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, error, reasoning, reply, text, tool_call
from tests.support.variants import keeps
from tests.support.waiting import wait_until
from tests.support.websocket_client import SECONDS, WebSocketClient
from tests.support.wire import Json, Wire, output_text, roles_and_texts

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("calm")]


def messages(upstream: Upstream, model: str) -> list[tuple[str, str]]:
    """Return the messages of the last chat request."""
    return roles_and_texts(upstream.requests(model)[-1].body["messages"])


def has_ended(wire: Wire, response_id: str) -> bool:
    """Return whether a response is stored with its end."""
    found = wire.get(f"/{response_id}")
    return found.status_code == 200 and found.json()["status"] != "in_progress"


def test_websocket_responses_are_chained_stored_and_replayed(stack: LiveStack, wire: Wire, upstream: Upstream) -> None:
    """Other clients can retrieve and replay them."""
    upstream.script("turns", [reply(reasoning("Hm."), text("One", ".")), reply(text("Two."))])
    with WebSocketClient(stack) as websocket:
        websocket.ask(model="local/turns", input="first", stream=False)
        events = websocket.stream()
        first = events[-1]["response"]
        websocket.ask(model="local/turns", input="second", previous_response_id=first["id"])
        second = websocket.response()
    assert [output_text(each) for each in (first, second)] == ["One.", "Two."]
    assert messages(upstream, "turns") == [("user", "first"), ("assistant", "One."), ("user", "second")]
    assert wire.retrieve(second["id"]) == second
    assert wire.replay(first["id"]) == events


def test_websocket_negotiates_no_compression(stack: LiveStack) -> None:
    url = f"{stack.base_url.replace('http', 'ws', 1)}/v1/responses"
    with connect(url, proxy=None, compression="deflate", open_timeout=SECONDS) as socket:
        assert socket.protocol.extensions == []


def test_unstored_response_can_be_continued_on_its_websocket_only(
    stack: LiveStack, wire: Wire, upstream: Upstream
) -> None:
    """A chain of stored and unstored responses, with a call. Another connection cannot continue it."""
    tools = [function("weather", "city")]
    called = reply(tool_call(0, "call_1", "weather", '{"city":"Oslo"}'))
    upstream.script("mixed", [reply(text("One.")), called, reply(text("Cold.")), reply(text("Four."))])
    with WebSocketClient(stack) as websocket, WebSocketClient(stack) as other:
        websocket.ask(model="local/mixed", input="first")
        first = websocket.response()
        websocket.ask(
            model="local/mixed", input="canary-5150", previous_response_id=first["id"], store=False, tools=tools
        )
        second = websocket.response()
        assert wire.get(f"/{second['id']}").status_code == 404
        assert not keeps(stack.state_dir / "responses.db", "canary-5150")
        output = {"type": "function_call_output", "call_id": "call_1", "output": "-3"}
        following = {"model": "local/mixed", "input": [output], "previous_response_id": second["id"], "tools": tools}
        other.ask(**following)
        assert other.error()["code"] == "previous_response_not_found"
        websocket.ask(**following, store=False)
        third = websocket.response()
        websocket.ask(model="local/mixed", input="last", previous_response_id=third["id"])
        fourth = websocket.response()
    assert [role for role, _ in messages(upstream, "mixed")] == [
        *("user", "assistant", "user", "assistant", "tool", "assistant", "user")
    ]
    # A stored response includes the unstored history before it.
    [page] = wire.pages(f"/{fourth['id']}/input_items", order="asc")
    assert [item["type"] for item in page["data"]] == [
        *("message", "message", "message", "function_call", "function_call_output", "message", "message")
    ]


@pytest.mark.parametrize("failure", ["refused by the server", "refused by the model server", "broken off"])
def test_failed_websocket_continuation_forgets_the_unstored_response(
    stack: LiveStack, upstream: Upstream, failure: str
) -> None:
    end = {"refused by the model server": [error(500, "Broken.")], "broken off": [reply(text("Half"), end="drop")]}
    upstream.script("odd", [reply(text("One.")), *end.get(failure, []), reply(text("Three."))])
    with WebSocketClient(stack) as websocket:
        websocket.ask(model="local/odd", input="first", store=False)
        first = websocket.response()
        following: Json = {"model": "local/odd", "previous_response_id": first["id"], "store": False}
        websocket.ask(**following, input=3 if failure == "refused by the server" else "second")
        if failure == "broken off":
            assert websocket.response()["status"] == "failed"
        else:
            assert websocket.error()["status"] in (400, 502)
        websocket.ask(**following, input="third")
        assert websocket.error()["code"] == "previous_response_not_found"


def test_generate_false_prepares_input_for_the_next_response(stack: LiveStack, wire: Wire, upstream: Upstream) -> None:
    with WebSocketClient(stack) as websocket:
        for store in (True, False):
            websocket.ask(model="local/echo", input="the code is 1234", generate=False, store=store)
            prepared = websocket.response()
            assert (prepared["status"], prepared["output"]) == ("completed", [])
            assert prepared["usage"]["total_tokens"] == 0
            assert upstream.requests("echo") == []
            assert not store or wire.replay(prepared["id"])[-1]["response"] == prepared
            websocket.ask(model="local/echo", input="go on", previous_response_id=prepared["id"], store=store)
            assert output_text(websocket.response())
            assert messages(upstream, "echo") == [("user", "the code is 1234"), ("user", "go on")]
            upstream.reset()
        websocket.ask(model="nowhere/to-be-found", input="x", generate=False)
        assert (error := websocket.error())["status"] == 404
        assert error["code"] == "model_not_found"


def test_generate_false_needs_no_input(stack: LiveStack, upstream: Upstream) -> None:
    """Codex opens its connections like this, before it has anything to say."""
    with WebSocketClient(stack) as websocket:
        websocket.ask(model="local/echo", input=[], generate=False, store=False)
        first = websocket.response()
        assert (first["status"], first["output"], upstream.requests("echo")) == ("completed", [], [])
        websocket.ask(model="local/echo", input="Hello", previous_response_id=first["id"], store=False)
        assert output_text(websocket.response()) == "Hello"
        websocket.ask(model="local/echo", input=[], store=False)
        assert websocket.until("error")[-1]["error"]["code"] == "missing_required_parameter"


def test_prewarm_asks_the_model_server_in_spite_of_generate(stack: LiveStack, upstream: Upstream) -> None:
    with WebSocketClient(stack) as websocket:
        for generate in (True, False):
            options = {"prewarm": True}
            websocket.ask(model="local/echo", input="the code is 1234", generate=generate, prompt_cache_options=options)
            prepared = websocket.response()
            assert (prepared["status"], prepared["output"]) == ("completed", [])
            [chat] = upstream.requests("echo")
            assert chat.body["max_completion_tokens"] == 1
            upstream.reset()


def test_lanes_run_concurrently_and_each_in_order(stack: LiveStack, upstream: Upstream) -> None:
    """A new lane continues from a response of a lane that is still running."""
    upstream.script("slow", [reply(text("One.")), reply(text("Tw", "o."), hold=1), reply(text("Three."))])
    with WebSocketClient(stack) as websocket:
        websocket.ask("a", model="local/slow", input="first", store=False)
        first = websocket.response("a")
        websocket.ask("a", model="local/slow", input="second", previous_response_id=first["id"], store=False)
        websocket.ask("a", model="local/slow", input="third", store=False)
        assert websocket.until("response.output_text.delta", "a")[0]["type"] == "response.created"
        websocket.ask("b", model="local/echo", input="fork", previous_response_id=first["id"], store=False)
        forked = websocket.response("b")
        websocket.ask(model="local/echo", input="the lane without a name")
        assert output_text(websocket.response())
        assert len(upstream.requests("slow")) == 2
        upstream.release("slow")
        assert output_text(websocket.until("response.completed", "a")[-1]["response"]) == "Two."
        assert output_text(websocket.response("a")) == "Three."
    assert output_text(forked)
    assert messages(upstream, "echo")[-1] == ("user", "the lane without a name")
    [fork] = [each for each in upstream.requests("echo") if len(each.body["messages"]) == 3]
    assert roles_and_texts(fork.body["messages"]) == [("user", "first"), ("assistant", "One."), ("user", "fork")]


ERRORS: dict[str, tuple[Json, int, str | None, str | None]] = {
    "a field": ({"input": 3}, 400, "input", "invalid_type"),
    "no model": ({"model": None}, 400, "model", "missing_required_parameter"),
    "in the background": ({"background": True}, 400, "background", "unsupported_parameter"),
    "no flag": ({"generate": "no"}, 400, "generate", "invalid_type"),
    "unknown before": ({"previous_response_id": "resp_0"}, 400, "previous_response_id", "previous_response_not_found"),
    "unknown before, of another form": (
        {"previous_response_id": "resp_fake_non-existent_id"},
        400,
        "previous_response_id",
        "previous_response_not_found",
    ),
    "no model of this name": ({"model": "nowhere/x"}, 404, "model", "model_not_found"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_invalid_websocket_request_keeps_the_connection_usable(stack: LiveStack, upstream: Upstream, name: str) -> None:
    changed, status, param, code = ERRORS[name]
    with WebSocketClient(stack) as websocket:
        websocket.ask("a", **{"model": "local/echo", "input": "x"} | changed)
        error = websocket.error("a")
        assert (error["status"], error["type"]) == (status, "invalid_request_error")
        assert (error["param"], error["code"]) == (param, code)
        websocket.ask("a", model="local/echo", input="x")
        assert output_text(websocket.response("a"))


def test_invalid_websocket_messages_are_400(stack: LiveStack, upstream: Upstream) -> None:
    with WebSocketClient(stack) as websocket:
        for message in ("{", "[]", '"x"', '{"model": "local/echo"}', '{"type": "response.cancel"}'):
            websocket.socket.send(message)
            assert websocket.error()["status"] == 400
        websocket.ask("no lane!", model="local/echo", input="x")
        assert websocket.error()["code"] == "invalid_stream_id"
        websocket.socket.send(json.dumps({"type": "response.create", "model": "local/echo", "input": "x"}).encode())
        assert output_text(websocket.response())


def test_model_server_errors_on_a_websocket_keep_the_lane_usable(
    stack: LiveStack, wire: Wire, upstream: Upstream
) -> None:
    """An error before the response has its HTTP status. An error in the middle is part of the response."""
    refusal = error(429, "Slow down.", headers={"retry-after": "7"})
    upstream.script("odd", [refusal, reply(text("Half"), end="drop"), reply(text("Whole."))])
    with WebSocketClient(stack) as websocket:
        websocket.ask("a", model="local/odd", input="x")
        refused = websocket.error("a")
        assert (refused["status"], refused["headers"]) == (429, {"retry-after": "7"})
        websocket.ask("a", model="local/odd", input="x")
        failed = websocket.response("a")
        assert (failed["status"], output_text(failed)) == ("failed", "Half")
        websocket.ask("a", model="local/odd", input="x")
        assert output_text(websocket.response("a")) == "Whole."
    assert wire.retrieve(failed["id"]) == failed


def test_websocket_disconnect_ends_running_and_waiting_responses(
    stack: LiveStack, wire: Wire, upstream: Upstream
) -> None:
    """In all lanes. Waiting requests are not started."""
    for model in ("left-a", "left-b"):
        upstream.script(model, reply(text("Half", "never"), hold=1))
    with WebSocketClient(stack) as websocket:
        websocket.ask("a", model="local/left-a", input="x")
        websocket.ask("a", model="local/left-a", input="waits")
        websocket.ask("b", model="local/left-b", input="x")
        ids = [websocket.until("response.output_text.delta", lane)[0]["response"]["id"] for lane in ("a", "b")]
    for model in ("left-a", "left-b"):
        [record] = upstream.wait_for(model, ended=True)
        assert record.ended == "client_gone"
    for response_id in ids:
        wait_until(partial(has_ended, wire, response_id))
        cancelled = wire.retrieve(response_id)
        assert (cancelled["status"], output_text(cancelled)) == ("cancelled", "Half")
    assert len(upstream.requests("left-a")) == 1


def test_websocket_with_foreign_origin_is_403(stack: LiveStack) -> None:
    """Browsers apply no CORS to WebSockets. Pages of this server and clients without an Origin may connect."""
    with pytest.raises(InvalidStatus) as refused:
        WebSocketClient(stack, headers={"origin": "https://evil.example"})
    assert refused.value.response.status_code == 403
    with WebSocketClient(stack, headers={"origin": stack.base_url}) as websocket:
        websocket.ask(model="local/echo", input="x")
        assert output_text(websocket.response())


def test_websocket_lane_over_the_limit_is_refused(stack: LiveStack, upstream: Upstream) -> None:
    with WebSocketClient(stack) as websocket:
        for number in range(32):
            websocket.ask(f"lane-{number}", model="local/echo", input="x", generate=False, store=False)
        for number in range(32):
            websocket.response(f"lane-{number}")
        websocket.ask("one-too-many", model="local/echo", input="x")
        assert websocket.error("one-too-many")["code"] == "websocket_stream_limit_reached"
        websocket.ask("lane-31", model="local/echo", input="x")
        assert output_text(websocket.response("lane-31"))


# The openai package


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")
def test_sdk_websocket_connection_creates_and_continues_responses(client: openai.OpenAI, upstream: Upstream) -> None:
    """The unmodified connection of the openai package."""
    with client.responses.connect() as connection:
        connection.response.create(model="local/echo", input="Hello", store=False)
        first = next(event.response for event in connection if event.type == "response.completed")
        connection.response.create(model="local/echo", input="again", previous_response_id=first.id, store=False)
        types = []
        for event in connection:
            types.append(event.type)
            if event.type == "response.completed":
                break
        assert types[:2] == ["response.created", "response.in_progress"]
        connection.response.create(model="local/echo", input="x", background=True)
        assert (refused := connection.recv()).type == "error"
        assert (refused.status, refused.error.param) == (400, "background")
    assert [role for role, _ in messages(upstream, "echo")] == ["user", "assistant", "user"]


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")
def test_sdk_websocket_session_uses_lanes(client: openai.OpenAI, upstream: Upstream) -> None:
    limits = ResponsesWebSocketLimits(
        max_lanes=8, max_events_per_lane=128, max_events=512, max_bytes_per_lane=1 << 24, max_bytes=1 << 25
    )
    upstream.script("lanes", reply(reasoning("Hm."), text("Hel", "lo.")))
    with client.responses.connect() as connection, ResponsesWebSocketSession(connection, limits=limits) as session:
        lane, other = session.lane("conversation"), session.lane("other")
        lane.send({"type": "response.create", "model": "local/lanes", "input": "Hi"})
        accumulator = ResponsesWebSocketAccumulator()
        while accumulator.snapshot().terminal_type is None:
            accumulator.add_event(lane.recv(timeout=60))
        final = accumulator.get_final_response()
        assert accumulator.snapshot().output_text == "Hello."
        other.send(
            {"type": "response.create", "model": "local/lanes", "input": "Fork", "previous_response_id": final.id}
        )
        assert other.get_final_response(timeout=60).output_text == "Hello."


def test_async_sdk_websocket_connection_creates_a_response(stack: LiveStack, upstream: Upstream) -> None:
    async def websocket() -> str:
        url = f"{stack.base_url}/v1"
        client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        async with client, client.responses.connect() as connection:
            await connection.response.create(model="local/echo", input="Hello")
            async for event in connection:
                if event.type == "response.completed":
                    return event.response.output_text
        return ""

    assert asyncio.run(websocket())
