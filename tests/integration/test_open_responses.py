"""The cases of the Open Responses acceptance suite, over HTTP and over WebSockets.

Each answer has to match the published specification and the types of the `openai` package.
"""

from typing import Any, Final

import pytest

from tests.support.one_pixel import ONE_PIXEL
from tests.support.open_responses import COMPACTED, RESPONSE, SOCKET_ERROR, check, check_event
from tests.support.openai_client import function
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reasoning, reply, text, tool_call
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Json, Wire, error_of, final, output_text, roles_and_texts

pytestmark = [pytest.mark.live, pytest.mark.both_hosts, pytest.mark.usefixtures("calm")]

WEATHER: Final = function("get_weather", "location", description="The weather at a place.", strict=False)
CALL: Final = reply(tool_call(0, "call_1", "get_weather", '{"loca', 'tion":"Oslo"}'))


@pytest.fixture
def model(provider: str) -> str:
    """The scripted model, through either inference provider."""
    return f"{provider}/open"


def message(role: str, content: Any, **more: Any) -> Json:
    """Return a message in its full form."""
    return {"type": "message", "role": role, "content": content, **more}


def completed(wire: Wire, **body: Any) -> Json:
    """Create a response, check it against the specification, also when it is retrieved, and return it."""
    response = wire.create(**body)
    check(RESPONSE, response)
    assert response["status"] == "completed"
    assert response["output"]
    again = wire.retrieve(response["id"])
    check(RESPONSE, again)
    assert again == response
    return response


def check_events(events: list[Json]) -> Json:
    """Check the events against the specification, and return their final response."""
    for event in events:
        check_event(event)
    response = final(events)
    check(RESPONSE, response)
    assert response["status"] == "completed"
    return response


def respond(websocket: WebSocketClient, **body: Any) -> Json:
    """Return the response to one request on a WebSocket."""
    websocket.ask(**body)
    return check_events(websocket.stream())


def refused(websocket: WebSocketClient, **body: Any) -> Json:
    """Return the error of one refused request on a WebSocket."""
    websocket.ask(**body)
    event = websocket.event()
    check(SOCKET_ERROR, event)
    assert event["status"] == 400
    error: Json = event["error"]
    return error


# HTTP


def test_message_gets_text_of_model(wire: Wire, upstream: Upstream, model: str) -> None:
    upstream.script("open", reply(text("Hello", " to", " you.")))
    response = completed(wire, model=model, input=[message("user", "Say hello in three words.")])
    assert output_text(response) == "Hello to you."


def test_phases_of_earlier_messages_are_accepted(wire: Wire, upstream: Upstream, model: str) -> None:
    upstream.script("open", reply(text("Four.")))
    history = [
        message("assistant", "The number was saved.", phase="commentary"),
        message("assistant", "It is four.", phase="final_answer"),
    ]
    completed(wire, model=model, input=[*history, message("user", "Only the number.")])
    sent = roles_and_texts(upstream.requests("open")[-1].body["messages"])
    assert sent[-1] == ("user", "Only the number.")
    assert "It is four." in "".join(content for _, content in sent)


def test_messages_of_both_phases_match_the_specification(wire: Wire, upstream: Upstream, model: str) -> None:
    upstream.script("open", reply(text("One look."), tool_call(0, "call_1", "get_weather", '{"location":"Oslo"}')))
    response = completed(wire, model=model, input="Weather?", tools=[WEATHER])
    assert [item.get("phase") for item in response["output"]] == ["commentary", None]
    upstream.script("open", reply(text("Cold.")))
    output = {"type": "function_call_output", "call_id": "call_1", "output": "-3"}
    again = completed(wire, model=model, previous_response_id=response["id"], input=[output], tools=[WEATHER])
    assert [item.get("phase") for item in again["output"]] == ["final_answer"]


def test_stream_events_match_the_specification(wire: Wire, upstream: Upstream, model: str) -> None:
    upstream.script("open", reply(reasoning("Count."), text("1, ", "2, ", "3")))
    events = wire.stream(model=model, input=[message("user", "Count to 3.")], reasoning={"summary": "auto"})
    assert output_text(check_events(events)) == "1, 2, 3"
    check_events(wire.replay(final(events)["id"]))


def test_system_message_is_sent(wire: Wire, upstream: Upstream, model: str) -> None:
    upstream.script("open", reply(text("Ahoy.")))
    completed(wire, model=model, input=[message("system", "Speak as pirates do."), message("user", "Say hello.")])
    assert roles_and_texts(upstream.requests("open")[-1].body["messages"]) == [
        ("system", "Speak as pirates do."),
        ("user", "Say hello."),
    ]


def test_function_is_called(wire: Wire, upstream: Upstream, model: str) -> None:
    upstream.script("open", CALL)
    response = completed(wire, model=model, input=[message("user", "The weather in Oslo?")], tools=[WEATHER])
    assert [item["type"] for item in response["output"]] == ["function_call"]


def test_function_without_description_is_echoed_with_null(wire: Wire, upstream: Upstream, model: str) -> None:
    upstream.script("open", CALL)
    bare = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    response = completed(wire, model=model, input="The weather in Oslo?", tools=[bare])
    assert response["tools"] == [{**bare, "description": None, "strict": None}]


def test_called_function_is_streamed(wire: Wire, upstream: Upstream, model: str) -> None:
    upstream.script("open", CALL)
    events = wire.stream(model=model, input=[message("user", "The weather in Oslo?")], tools=[WEATHER])
    check_events(events)
    assert [event["type"].removeprefix("response.") for event in events[2:-1]] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]


def test_image_reaches_the_model(wire: Wire, upstream: Upstream, model: str) -> None:
    upstream.script("open", reply(text("A dot.")))
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": ONE_PIXEL}]
    completed(wire, model=model, input=[message("user", parts)])
    [sent] = upstream.requests("open")[-1].body["messages"]
    assert [part["type"] for part in sent["content"]] == ["text", "image_url"]


def test_earlier_turns_in_the_input_are_sent(wire: Wire, upstream: Upstream, model: str) -> None:
    upstream.script("open", reply(text("Alice.")))
    turns = [message("user", "I am Alice."), message("assistant", "Hello Alice!"), message("user", "Who am I?")]
    completed(wire, model=model, input=turns)
    assert roles_and_texts(upstream.requests("open")[-1].body["messages"]) == [
        (turn["role"], turn["content"]) for turn in turns
    ]


def test_conversation_is_compacted(wire: Wire, upstream: Upstream, model: str) -> None:
    upstream.script("open", reply(text("They launch on Tuesday.")))
    turns = [message("user", "We launch on Tuesday."), message("assistant", "Understood.")]
    answer = wire.http.post("/responses/compact", json={"model": model, "prompt_cache_key": "key", "input": turns})
    assert answer.status_code == 200, answer.text
    check(COMPACTED, answer.json())
    assert [item["type"] for item in answer.json()["output"]] == ["message", "compaction"]


def test_compaction_without_a_model_is_refused(wire: Wire) -> None:
    answer = wire.http.post("/responses/compact", json={"input": [message("user", "Make it short.")]})
    assert error_of(answer, 400)["param"] == "model"


# WebSocket


def test_socket_events_match_the_specification(stack: LiveStack, upstream: Upstream, model: str) -> None:
    upstream.script("open", reply(text("1, ", "2")))
    with WebSocketClient(stack, token="none", headers={"content-type": "application/json"}) as websocket:
        assert output_text(respond(websocket, model=model, input=[message("user", "Count to 2.")])) == "1, 2"


def test_socket_serves_successive_requests(stack: LiveStack, upstream: Upstream, model: str) -> None:
    upstream.script("open", [reply(text("first")), reply(text("second"))])
    with WebSocketClient(stack) as websocket:
        turns = [respond(websocket, model=model, store=False, input=f"Say {word}.") for word in ("first", "second")]
    assert [output_text(turn) for turn in turns] == ["first", "second"]
    assert [turn["store"] for turn in turns] == [False, False]


def test_socket_continues_from_an_unstored_response(stack: LiveStack, upstream: Upstream, model: str) -> None:
    upstream.script("open", [reply(text("OK")), reply(text("cobalt"))])
    with WebSocketClient(stack) as websocket:
        first = respond(websocket, model=model, store=False, input="The word is cobalt.")
        second = respond(websocket, model=model, store=False, previous_response_id=first["id"], input="The word?")
    assert second["previous_response_id"] == first["id"]
    assert roles_and_texts(upstream.requests("open")[-1].body["messages"]) == [
        ("user", "The word is cobalt."),
        ("assistant", "OK"),
        ("user", "The word?"),
    ]


def test_unstored_response_is_unknown_on_another_socket_which_stays_usable(
    stack: LiveStack, upstream: Upstream, model: str
) -> None:
    upstream.script("open", [reply(text("OK")), reply(text("recovered"))])
    with WebSocketClient(stack) as websocket:
        first = respond(websocket, model=model, store=False, input="The word is copper.")
    with WebSocketClient(stack) as websocket:
        error = refused(websocket, model=model, store=False, previous_response_id=first["id"], input="The word?")
        assert error["code"] == "previous_response_not_found"
        recovered = respond(websocket, model=model, store=False, input=[message("user", "Begin anew.")])
    assert output_text(recovered) == "recovered"


def test_unknown_previous_response_is_not_found_on_a_socket(stack: LiveStack, model: str) -> None:
    with WebSocketClient(stack) as websocket:
        missing = "resp_openresponses_missing_1767225600000"
        error = refused(websocket, model=model, store=False, previous_response_id=missing, input="Go on.")
    assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")


def test_failed_continuation_forgets_the_unstored_response(stack: LiveStack, upstream: Upstream, model: str) -> None:
    upstream.script("open", reply(text("OK")))
    output = {"type": "function_call_output", "call_id": "call_missing", "output": "No such call."}
    with WebSocketClient(stack) as websocket:
        first = respond(websocket, model=model, store=False, input="The word is ember.")
        following = {"model": model, "store": False, "previous_response_id": first["id"]}
        refused(websocket, **following, input=[output])
        assert refused(websocket, **following, input="The word?")["code"] == "previous_response_not_found"


def test_compacted_conversation_continues_on_a_socket(
    stack: LiveStack, wire: Wire, upstream: Upstream, model: str
) -> None:
    upstream.script("open", [reply(text("The word is slate.")), reply(text("compacted"))])
    turns = [
        message("user", [{"type": "input_text", "text": "The word is slate."}]),
        message("assistant", [{"type": "output_text", "text": "OK."}]),
        message("user", [{"type": "input_text", "text": "Make this short."}]),
    ]
    answer = wire.http.post("/responses/compact", json={"model": model, "input": turns})
    assert answer.status_code == 200, answer.text
    with WebSocketClient(stack) as websocket:
        window = [*answer.json()["output"], message("user", "Go on from here.")]
        response = respond(websocket, model=model, store=False, input=window, tools=[])
    assert output_text(response) == "compacted"
    assert "The word is slate." in str(upstream.requests("open")[-1].body["messages"])
