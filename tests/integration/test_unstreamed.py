"""Unstreamed requests to model servers: clients get the same output in larger deltas."""

from typing import Any, Final

import openai
import pytest

from tests.support.openai_client import Json, create, function, stored, stream
from tests.support.socket_client import SocketClient
from tests.support.stack import LiveStack
from tests.support.upstream import Chunk, Upstream, error, finish, logprobs, reasoning, refusal, reply, text, tool_call
from tests.support.waiting import wait_until
from tests.support.wire import Wire, error_of, final

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

STREAMED: Final = {"stream": True, "stream_options": {"include_usage": True}}
WHOLE: Final = {"stream": False}
TOOLS: Final = [function("f", "a"), function("g")]

ANSWERS: Final[dict[str, list[list[Chunk]]]] = {
    "text": [text("Hel", "lo")],
    "reasoning and text": [reasoning("Let me ", "see."), text("Hello")],
    "parallel calls": [tool_call(0, "c1", "f", '{"a":', '"x"}'), tool_call(1, "c2", "g", "{}")],
    "text and a call": [text("So: "), tool_call(0, "c1", "g", "{}")],
    "a refusal": [refusal("No, ", "thanks.")],
    "cut off": [text("Hel"), finish("length")],
    "filtered": [text("Hel"), finish("content_filter")],
    "nothing": [finish("stop")],
}


def streaming_fields(upstream: Upstream, model: str) -> list[Json]:
    """Return the streaming fields of each request for the model."""
    bodies = [record.body for record in upstream.requests(model)]
    return [{name: body[name] for name in ("stream", "stream_options") if name in body} for body in bodies]


def without_names(response: Json) -> Json:
    """Return the response without ids, times, model and sealed content."""
    items = [
        {name: value for name, value in item.items() if name not in ("id", "encrypted_content")}
        for item in response["output"]
    ]
    of_each = ("id", "created_at", "completed_at", "model")
    return {name: value for name, value in response.items() if name not in of_each} | {"output": items}


@pytest.mark.parametrize("answer", ANSWERS)
def test_unstreamed_model_request_gives_the_same_response(
    client: openai.OpenAI, upstream: Upstream, provider: str, answer: str
) -> None:
    found = []
    for model, request in (("streams", STREAMED), ("unstreamed-1", WHOLE)):
        upstream.script(model, reply(*ANSWERS[answer]))
        streamed = stream(client, model=f"{provider}/{model}", input="Hi", tools=TOOLS)
        assert stored(client, streamed.response["id"]) == streamed.response
        assert streaming_fields(upstream, model) == [request]
        found.append(streamed.response)
    assert without_names(found[0]) == without_names(found[1])


def test_unstreamed_model_request_returns_logprobs(client: openai.OpenAI, upstream: Upstream, provider: str) -> None:
    upstream.script("unstreamed-2", reply(logprobs(("Hel", -0.1), ("lo", -0.2))))
    params: dict[str, Any] = {"include": ["message.output_text.logprobs"], "model": f"{provider}/unstreamed-2"}
    [message] = stream(client, input="Hi", **params).response["output"]
    assert message["content"][0]["text"] == "Hello"
    assert [each["token"] for each in message["content"][0]["logprobs"]] == ["Hel", "lo"]


def test_model_request_is_streamed_only_if_the_client_follows_it(
    client: openai.OpenAI, upstream: Upstream, provider: str
) -> None:
    model = f"{provider}/as-asked-1"
    upstream.script("as-asked-1", reply(text("Hel", "lo")))
    assert create(client, model=model, input="Hi")["output"][0]["content"][0]["text"] == "Hello"
    assert stream(client, model=model, input="Hi").texts("output_text") == ["Hel", "lo"]
    queued = client.responses.create(model=model, input="Hi", background=True)
    wait_until(lambda: client.responses.retrieve(queued.id).status == "completed")
    assert streaming_fields(upstream, "as-asked-1") == [WHOLE, STREAMED, STREAMED]


def test_unstreamed_model_request_error_is_mapped_to_an_api_error(
    wire: Wire, upstream: Upstream, provider: str
) -> None:
    model = f"unstreamed-failing-{provider}"
    upstream.script(model, error(400, "The temperature is too high."))
    assert (
        error_of(wire.post({"model": f"{provider}/{model}", "input": "Hi", "stream": True}), 400)["message"]
        == "The temperature is too high."
    )
    upstream.script(model, reply(text("Hel"), end="drop"))
    answer = wire.post({"model": f"{provider}/{model}", "input": "Hi"})
    assert "connection" in error_of(answer, 502)["message"]


def test_client_disconnect_during_unstreamed_model_request_ends_it(
    stack: LiveStack, wire: Wire, upstream: Upstream, provider: str
) -> None:
    model = f"unstreamed-left-{provider}"
    upstream.script(model, reply(text("never"), hold=0))
    with SocketClient(stack, {"model": f"{provider}/{model}", "input": "x", "stream": True}) as client:
        upstream.wait_for(model)
        client.disconnect()
        [record] = upstream.wait_for(model, ended=True)
    assert record.ended == "client_gone"
    wait_until(lambda: wire.listed(model=f"{provider}/{model}") != [])
    [response] = wire.listed(model=f"{provider}/{model}")
    assert final(wire.replay(response["id"])) == response
    assert response["status"] == "cancelled"
