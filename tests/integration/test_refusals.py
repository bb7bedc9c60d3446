"""Model servers that refuse chat requests: the requests are changed and sent again, and what helped is remembered."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import openai
import pytest

from tests.support.openai_client import Json, function, stream
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Reply, Upstream, error, reply, text, tool_call
from tests.support.websocket_client import WebSocketClient

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

HELLO: Final = reply(text("Hello", " world"))
TOOLS: Final = [function("weather", "city")]


@pytest.fixture
def model() -> str:
    """A model of which no test has learned anything."""
    return f"refusing-{uuid4().hex[:8]}"


def forbidden(*names: str) -> Reply:
    """Return the refusal of a server that lists invalid fields, as pydantic does."""
    detail = [
        {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"} for name in names
    ]
    return Reply(status=422, body={"object": "error", "message": {"detail": detail}, "type": "invalid_request_error"})


def sent(upstream: Upstream, model: str) -> list[Json]:
    """Return the bodies of the chat requests for a model."""
    return [each.body for each in upstream.requests(model)]


def ask(client: openai.OpenAI, streamed: bool, *, adapted: Collection[str] = (), **fields: Any) -> Json:
    """Return the response to a request; `adapted` are its fields that say at the end how the model server was asked."""
    if streamed:
        return stream(client, adapted=adapted, **fields).response
    response: Json = client.responses.create(**fields).to_dict()
    return response


@pytest.mark.parametrize("streamed", [True, False])
def test_refused_parameters_are_dropped_and_stay_away(
    client: openai.OpenAI, upstream: Upstream, provider: str, model: str, streamed: bool
) -> None:
    both = forbidden("prompt_cache_key", "parallel_tool_calls")
    upstream.script(model, [both, HELLO, forbidden("parallel_tool_calls"), HELLO, HELLO])
    fields: Json = {"prompt_cache_key": "k", "parallel_tool_calls": False, "tools": TOOLS, "input": "Hi"}
    fields["adapted"] = {"prompt_cache_key", "parallel_tool_calls"}
    first = ask(client, streamed, model=f"{provider}/{model}", **fields)
    responses = [first]
    for _ in range(2):
        before = responses[-1]["id"]
        responses.append(ask(client, streamed, model=f"{provider}/{model}", previous_response_id=before, **fields))
    for response in responses:
        assert response["status"] == "completed"
        assert (response["parallel_tool_calls"], response["prompt_cache_key"]) == (True, None)
    bodies = sent(upstream, model)
    assert ["prompt_cache_key" in each for each in bodies] == [True, False, False, False, False], "a hint: at once"
    assert ["parallel_tool_calls" in each for each in bodies] == [True, False, True, False, False], "after two refusals"


def test_only_the_refused_parameter_is_dropped_beside_a_list_of_accepted_ones(
    client: openai.OpenAI, upstream: Upstream, provider: str, model: str
) -> None:
    accepted = ("model", "messages", "temperature", "top_p", "stream_options", "max_completion_tokens")
    words = f"unknown field `user`, expected one of {', '.join(f'`{name}`' for name in accepted)} at line 1 column 99"
    upstream.script(model, [error(422, words), HELLO])
    fields: Json = {"user": "u", "temperature": 0.3, "top_p": 0.8, "max_output_tokens": 60, "input": "Hi"}
    ask(client, True, adapted={"user"}, model=f"{provider}/{model}", **fields)
    first, second = sent(upstream, model)
    assert second == {name: value for name, value in first.items() if name != "user"}


def test_refusal_on_a_websocket_is_answered_too(
    stack: LiveStack, upstream: Upstream, provider: str, model: str
) -> None:
    upstream.script(model, [forbidden("user"), HELLO])
    with WebSocketClient(stack) as websocket:
        websocket.ask(model=f"{provider}/{model}", input="Hi", user="ada")
        first = websocket.response(adapted={"user"})
        websocket.ask(model=f"{provider}/{model}", input="Go on", user="ada", previous_response_id=first["id"])
        second = websocket.response(adapted={"user"})
    assert [each["status"] for each in (first, second)] == ["completed"] * 2
    assert ["user" in each for each in sent(upstream, model)] == [True, False, False]


def test_refusal_in_a_tool_loop_is_learned_from_two_responses(
    client: openai.OpenAI, upstream: Upstream, provider: str, model: str
) -> None:
    refusal = error(400, "Unsupported value: 'minimal' is not supported. Supported values are: 'low', 'medium'.")
    refusal.body["error"]["param"] = "reasoning_effort"
    called = reply(tool_call(0, "c1", "weather", '{"city":"Oslo"}'))
    upstream.script(model, [refusal, called, refusal, HELLO, HELLO])
    items: list[Any] = [{"role": "user", "content": "Hi"}]
    fields: Json = {"model": f"{provider}/{model}", "reasoning": {"effort": "minimal"}, "tools": TOOLS, "store": False}
    responses = [ask(client, True, adapted={"reasoning"}, input=items, **fields)]
    items += [*responses[0]["output"], {"type": "function_call_output", "call_id": "c1", "output": "Rain"}]
    responses += [ask(client, True, adapted={"reasoning"}, input=items, **fields) for _ in range(2)]
    assert [each["reasoning_effort"] for each in sent(upstream, model)] == [*["minimal", "low"] * 2, "low"]
    assert {each["reasoning"]["effort"] for each in responses} == {"low"}


@pytest.mark.parametrize("background", [True, False])
def test_limit_on_tokens_is_renamed(
    client: openai.OpenAI, upstream: Upstream, provider: str, model: str, background: bool
) -> None:
    upstream.script(model, [forbidden("max_completion_tokens"), HELLO])
    fields: Json = {"model": f"{provider}/{model}", "input": "Hi", "max_output_tokens": 50}
    response = ask(client, True, background=background, **fields)
    assert (response["status"], response["max_output_tokens"]) == ("completed", 50)
    first, second = sent(upstream, model)
    assert (first["max_completion_tokens"], second["max_tokens"]) == (50, 50)
    assert "max_completion_tokens" not in second


@pytest.mark.parametrize("passes", [True, False], ids=["passing", "lasting"])
def test_what_a_server_refuses_twice_is_kept_from_it_and_what_it_refuses_once_is_not(
    client: openai.OpenAI, upstream: Upstream, provider: str, model: str, passes: bool
) -> None:
    no = error(400, "Model is loading, temperature not yet supported")
    upstream.script(model, [no, HELLO] if passes else [no, HELLO, no, HELLO, HELLO])
    for _ in range(3):
        ask(client, True, model=f"{provider}/{model}", input="Hi", temperature=0.5, adapted={"temperature"})
    has = ["temperature" in each for each in sent(upstream, model)]
    assert has == ([True, False, True, True] if passes else [True, False, True, False, False])


def test_two_parts_that_are_refused_together_are_sent_one_at_a_time(
    client: openai.OpenAI, upstream: Upstream, provider: str, model: str
) -> None:
    no = error(400, "temperature is not supported with reasoning models")
    upstream.script(model, [no, HELLO, no, HELLO, HELLO])
    effort: Json = {"reasoning": {"effort": "low"}}
    for more in (effort, effort, effort, {}):
        ask(client, True, model=f"{provider}/{model}", input="Hi", temperature=0.5, adapted={"temperature"}, **more)
    assert ["temperature" in each for each in sent(upstream, model)] == [True, False, True, False, False, True]


def test_number_that_may_be_of_something_else_is_no_context(
    client: openai.OpenAI, upstream: Upstream, provider: str, model: str
) -> None:
    upstream.script(model, [error(400, "context window exceeded: maximum is 512 messages"), HELLO])
    with pytest.raises(openai.BadRequestError, match="512 messages"):
        ask(client, True, model=f"{provider}/{model}", input="Hi")
    turns = [{"role": role, "content": "word " * 50} for _ in range(20) for role in ("user", "assistant")]
    items = [*turns, {"role": "user", "content": "?"}]
    ask(client, True, model=f"{provider}/{model}", input=items, truncation="auto")
    assert len(sent(upstream, model)[-1]["messages"]) == len(items)


CITY: Final[Json] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORMAT: Final[Json] = {"format": {"type": "json_schema", "name": "n", "schema": CITY, "strict": False}}
NO_SCHEMA: Final = error(400, "This response_format type is unavailable now")


@pytest.mark.parametrize("streamed", [True, False])
def test_schema_that_is_refused_is_checked_here(
    client: openai.OpenAI, upstream: Upstream, provider: str, model: str, streamed: bool
) -> None:
    upstream.script(model, [NO_SCHEMA, reply(text("Oslo", "!")), reply(text('{"city":', '"Oslo"}'))])
    response = ask(client, streamed, model=f"{provider}/{model}", input="Where?", text=FORMAT)
    [message] = response["output"]
    assert message["content"][0]["text"] == '{"city":"Oslo"}'
    assert response["text"]["format"]["type"] == "json_schema"
    assert [each["response_format"]["type"] for each in sent(upstream, model)] == ["json_schema", *["json_object"] * 2]


@pytest.mark.parametrize("streamed", [True, False])
def test_answer_that_never_fits_the_schema_is_a_failed_response(
    client: openai.OpenAI, upstream: Upstream, provider: str, model: str, streamed: bool
) -> None:
    upstream.script(model, [NO_SCHEMA, reply(text("Oslo!"))])
    response = ask(client, streamed, model=f"{provider}/{model}", input="Where?", text=FORMAT)
    assert response["status"] == "failed"
    assert "not valid against the schema of 'text.format'" in response["error"]["message"]
    assert response["output"] == []
    assert len(sent(upstream, model)) == 4


def test_required_call_that_is_refused_is_asked_for_in_words(
    client: openai.OpenAI, upstream: Upstream, provider: str, model: str
) -> None:
    refusal = error(400, "Thinking mode does not support this tool_choice")
    upstream.script(model, [refusal, reply(text("It rains.")), reply(tool_call(0, "c1", "weather", '{"city":"Oslo"}'))])
    response = ask(client, True, model=f"{provider}/{model}", input="Hi", tools=TOOLS, tool_choice="required")
    assert [item["type"] for item in response["output"]] == ["function_call"]
    assert response["tool_choice"] == "required"


ARGUMENT_TYPES: Final = Reply(
    status=500,
    body={"detail": {"error": {"message": "'str object' has no attribute 'items'", "type": "server_error"}}},
)
QUOTED: Final = Reply(
    status=400,
    body={
        "error": {
            "message": "Provider returned error",
            "code": 400,
            "metadata": {"raw": '{"error":{"message":"Unsupported parameter: \'user\'"}}', "provider_name": "Azure"},
        }
    },
)
NO_TOOLS: Final = error(400, "The toolConfig field must be defined when using toolUse and toolResult content blocks.")
LOOP: Final[list[Any]] = [
    {"role": "user", "content": "Hi"},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Oslo"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "Rain"},
]


@pytest.mark.parametrize("streamed", [True, False])
def test_refusals_of_calls_and_of_a_server_behind_are_answered(
    client: openai.OpenAI, upstream: Upstream, provider: str, model: str, streamed: bool
) -> None:
    """A history with calls for a server that wants objects, behind one that quotes it, and behind one that wants tools."""
    upstream.script(model, [QUOTED, ARGUMENT_TYPES, NO_TOOLS, HELLO])
    fields: Json = {"model": f"{provider}/{model}", "user": "ada", "input": LOOP}
    first = ask(client, streamed, adapted={"user"}, **fields)
    asked = {"previous_response_id": first["id"], "input": "And now?"}
    second = ask(client, streamed, adapted={"user"}, **fields | asked)
    assert [each["status"] for each in (first, second)] == ["completed"] * 2
    *_, third, fourth, fifth = sent(upstream, model)
    assert "tools" not in third
    for each in (fourth, fifth):
        assert "user" not in each
        assert [tool["function"]["name"] for tool in each["tools"]] == ["weather"]
        [call] = next(message["tool_calls"] for message in each["messages"] if message.get("tool_calls"))
        assert call["function"]["arguments"] == {"city": "Oslo"}


NO_STREAM: Final = error(400, "This model doesn't support tool use in streaming mode.")
BEHIND: Final = Reply(
    status=502,
    body={
        "error": 'All variants failed: {"error":{"message":"Unsupported parameter: \'user\'","code":"unsupported_parameter"}}'
    },
)


@pytest.mark.parametrize("streamed", [True, False])
def test_server_that_does_not_stream_with_tools_and_gateway_that_quotes_a_refusal_are_answered(
    client: openai.OpenAI, upstream: Upstream, provider: str, model: str, streamed: bool
) -> None:
    called_tool = reply(tool_call(0, "c1", "weather", '{"city":"Oslo"}'))
    upstream.script(model, [BEHIND, NO_STREAM, called_tool, NO_STREAM, HELLO])
    fields: Json = {"model": f"{provider}/{model}", "user": "ada", "tools": TOOLS}
    called = ask(client, streamed, adapted={"user"}, input="Hi", **fields)
    output: Any = [{"type": "function_call_output", "call_id": called["output"][0]["call_id"], "output": "Rain"}]
    after = ask(client, streamed, adapted={"user"}, input=output, previous_response_id=called["id"], **fields)
    assert [each["status"] for each in (called, after)] == ["completed"] * 2
    assert [each["stream"] for each in sent(upstream, model)] == [True, True, False, True, False]
    assert ["user" in each for each in sent(upstream, model)] == [True, *[False] * 4]


def test_usage_is_unknown_where_the_server_refuses_to_report_it(
    client: openai.OpenAI, upstream: Upstream, provider: str, model: str
) -> None:
    upstream.script(model, [forbidden("stream_options"), reply(text("Hello"), usage=None)])
    response = ask(client, True, model=f"{provider}/{model}", input="Hi")
    assert (response["status"], response["usage"]) == ("completed", None)
    assert ["stream_options" in each for each in sent(upstream, model)] == [True, False]


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("status", [400, 500])
def test_refusal_that_nothing_helps_against_is_a_400_with_the_field(
    client: openai.OpenAI, upstream: Upstream, provider: str, model: str, status: int, streamed: bool
) -> None:
    entry = "[{'type': 'extra_forbidden', 'loc': ('body', 'tools'), 'msg': 'Tools are not supported here', 'input': 1}]"
    upstream.script(model, error(status, entry))
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, streamed, model=f"{provider}/{model}", input="Hi", tools=TOOLS)
    assert caught.value.param == "tools"
    assert caught.value.body["message"].startswith("body.tools: Tools are not supported here.")  # type: ignore[index]
    assert len(sent(upstream, model)) == 1, "the same request is not sent again"


def test_restarted_server_knows_what_it_has_learned(
    host: Host, stack_env: dict[str, str], upstream: Upstream, model: str, tmp_path: Path
) -> None:
    bad_schema = error(400, "Invalid schema for response_format 'n': 'required' is not permitted.")
    oslo = reply(text('{"city":"Oslo"}'))
    upstream.script(model, [forbidden("user"), bad_schema, oslo, bad_schema, oslo])
    small = f"{model}-small"
    upstream.script(small, HELLO, context=400)
    turns = [{"role": role, "content": "word " * 40} for _ in range(12) for role in ("user", "assistant")]
    long: Json = {"model": f"local/{small}", "input": [*turns, {"role": "user", "content": "?"}], "truncation": "auto"}
    env = {**stack_env, "INFERENCE_URL": upstream.base_url}
    fields: Json = {"model": f"local/{model}", "input": "Hi", "user": "ada", "text": FORMAT}
    with LiveStack(STARTER, env, tmp_path / "state", host=host) as stack:
        with stack.client() as client:
            ask(client, False, **fields)
            ask(client, False, **fields)
            ask(client, False, **long)
        refused = len(sent(upstream, small))
        stack.restart()
        with stack.client() as client:
            response = ask(client, False, **fields)
            ask(client, False, **long)
    assert (refused, len(sent(upstream, small))) == (2, 3), "the length of the context is known"
    bodies = sent(upstream, model)
    assert ["user" in each for each in bodies] == [True, *[False] * 5]
    asked = ["json_schema", "json_schema", "json_object", "json_schema", "json_object", "json_object"]
    assert [each["response_format"]["type"] for each in bodies] == asked
    assert (response["user"], response["text"]["format"]["type"]) == (None, "json_schema")
