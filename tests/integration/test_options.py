"""The fields of a request: their form in the chat request, and their echo in the response."""

from collections.abc import Mapping
from typing import Any, Final

import openai
import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from tests.support.openai_client import MODEL, NAME, Json, create, function, sent, stored, stream
from tests.support.upstream import Upstream, finish, logprobs, reply, text
from tests.support.wire import Wire, checked, error_of

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("calm")]

CHAT: Final[Json] = {
    "model": NAME,
    "messages": [{"role": "user", "content": "Hi"}],
    "stream": True,
    "stream_options": {"include_usage": True},
}
"""The chat request for the input "Hi" without other fields."""

RESPONSE: Final[Json] = {
    "object": "response",
    "status": "completed",
    "background": False,
    "billing": {"payer": "developer"},
    "error": None,
    "incomplete_details": None,
    "input_transformations": None,
    "access_programs": None,
    "conversation": None,
    "frequency_penalty": 0.0,
    "image": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "model": MODEL,
    "moderation": None,
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt": None,
    "prompt_cache_diagnostics": None,
    "prompt_cache_key": None,
    "prompt_cache_options": None,
    "prompt_cache_retention": None,
    "reasoning": {"effort": None, "summary": None, "context": "current_turn"},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tool_usage": {
        "image_gen": {
            "input_tokens": 0,
            "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"image_tokens": 0, "text_tokens": 0},
            "total_tokens": 0,
        },
        "web_search": {"num_requests": 0},
    },
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
    "usage": {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 11,
    },
}
"""The response to it, without ids, times and output."""

SAID: Final = reply(text("Hello"))
WEATHER: Final[Json] = function("weather", "city", description="The weather in a city.")
LOOSE: Final[Json] = {"type": "function", "name": "clock", "description": None, "parameters": None, "strict": None}
TOOL_OPTIONS: Final[Json] = {
    "allowed_callers": ["direct"],
    "async": False,
    "defer_loading": False,
    "output_schema": {"type": "object"},
}
SCHEMA: Final[Json] = {"type": "object", "properties": {"a": {"type": "integer"}}}


def chat_function(tool: Json) -> Json:
    """Return a tool in its chat form."""
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if name in tool}}


# Each field alone: the request, its additions to the chat request, its changes in the response.
FIELDS: Final[dict[str, tuple[Json, Json, Json]]] = {
    "temperature": ({"temperature": 0.3}, {"temperature": 0.3}, {"temperature": 0.3}),
    "temperature 0": ({"temperature": 0}, {"temperature": 0}, {"temperature": 0.0}),
    "temperature 2": ({"temperature": 2}, {"temperature": 2}, {"temperature": 2.0}),
    "top_p": ({"top_p": 0.5}, {"top_p": 0.5}, {"top_p": 0.5}),
    "top_p 0": ({"top_p": 0}, {"top_p": 0}, {"top_p": 0.0}),
    "frequency_penalty": (
        {"extra_body": {"frequency_penalty": 0.5}},
        {"frequency_penalty": 0.5},
        {"frequency_penalty": 0.5},
    ),
    "presence_penalty": (
        {"extra_body": {"presence_penalty": -2}},
        {"presence_penalty": -2},
        {"presence_penalty": -2.0},
    ),
    "max_output_tokens": (
        {"max_output_tokens": 16},
        {"max_completion_tokens": 16},
        {"max_output_tokens": 16},
    ),
    "instructions": (
        {"instructions": "Be brief."},
        {"messages": [{"role": "system", "content": "Be brief."}, *CHAT["messages"]]},
        {"instructions": "Be brief."},
    ),
    "user": ({"user": "ada"}, {"user": "ada"}, {"user": "ada"}),
    "safety_identifier": ({"safety_identifier": "s1"}, {"safety_identifier": "s1"}, {"safety_identifier": "s1"}),
    "prompt_cache_key": ({"prompt_cache_key": "k1"}, {"prompt_cache_key": "k1"}, {"prompt_cache_key": "k1"}),
    "prompt_cache_retention": (
        {"prompt_cache_retention": "24h"},
        {"prompt_cache_retention": "24h"},
        {"prompt_cache_retention": "24h"},
    ),
    "prompt_cache_options": (
        {"prompt_cache_options": {"mode": "explicit"}},
        {"prompt_cache_options": {"mode": "explicit"}},
        {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
    ),
    "verbosity": (
        {"text": {"verbosity": "low"}},
        {"verbosity": "low"},
        {"text": {"format": {"type": "text"}, "verbosity": "low"}},
    ),
    "format text": ({"text": {"format": {"type": "text"}}}, {}, {}),
    "format json_object": (
        {"text": {"format": {"type": "json_object"}}},
        {"response_format": {"type": "json_object"}},
        {"text": {"format": {"type": "json_object"}, "verbosity": "medium"}},
    ),
    "format json_schema": (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}, "verbosity": "medium"}},
    ),
    "reasoning summary": (
        {"reasoning": {"summary": "auto"}},
        {},
        {"reasoning": {"effort": None, "summary": "auto", "context": "current_turn"}},
    ),
    "reasoning context": (
        {"reasoning": {"context": "all_turns", "effort": "low"}},
        {"reasoning_effort": "low"},
        {"reasoning": {"effort": "low", "summary": None, "context": "all_turns"}},
    ),
    "reasoning summary by its old name": (
        {"reasoning": {"generate_summary": "auto"}},
        {},
        {"reasoning": {"effort": None, "summary": None, "generate_summary": "auto", "context": "current_turn"}},
    ),
    "metadata": ({"metadata": {"a": "b", "": ""}}, {}, {"metadata": {"a": "b", "": ""}}),
    "max_tool_calls": ({"max_tool_calls": 3}, {}, {"max_tool_calls": 3}),
    "truncation": ({"truncation": "disabled"}, {}, {}),
    "background": ({"background": False}, {}, {}),
    "background_options": ({"background_options": {"continuation_id": "c"}}, {}, {}),
    "store": ({"store": True}, {}, {}),
    "not stored": ({"store": False}, {}, {"store": False}),
    "include logprobs": ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}, {}),
    "include others": ({"include": ["reasoning.encrypted_content", "web_search_call.action.sources"]}, {}, {}),
    "top_logprobs": (
        {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 3},
        {"top_logprobs": 3},
    ),
    "top_logprobs 0": ({"top_logprobs": 0}, {}, {}),
    "access_programs": (
        {"access_programs": {"cyber": "standard"}},
        {},
        {"access_programs": {"cyber": "standard"}},
    ),
    "image": ({"image": {"context_compression": "auto"}}, {}, {}),
    "tools": (
        {"tools": [WEATHER, {"type": "function", "name": "clock"}]},
        {
            "tools": [
                chat_function(WEATHER),
                chat_function({"name": "clock", "parameters": {"type": "object", "properties": {}}}),
            ]
        },
        {"tools": [WEATHER, LOOSE]},
    ),
    "a tool that is not strict": (
        {"tools": [{**WEATHER, "strict": False}]},
        {"tools": [chat_function({**WEATHER, "strict": False})]},
        {"tools": [{**WEATHER, "strict": False}]},
    ),
    "a tool with everything": (
        {"tools": [{**WEATHER, **TOOL_OPTIONS}]},
        {"tools": [chat_function(WEATHER)]},
        {"tools": [{**WEATHER, **TOOL_OPTIONS}]},
    ),
    "no tools": ({"tools": []}, {}, {}),
    "tool_choice without tools": ({"tool_choice": "auto"}, {}, {}),
    "tool_choice auto": (
        {"tools": [WEATHER], "tool_choice": "auto"},
        {"tools": [chat_function(WEATHER)], "tool_choice": "auto"},
        {"tools": [WEATHER]},
    ),
    "tool_choice required": (
        {"tools": [WEATHER], "tool_choice": "required"},
        {"tools": [chat_function(WEATHER)], "tool_choice": "required"},
        {"tools": [WEATHER], "tool_choice": "required"},
    ),
    # With `none`, the hosts leave the tools out, so that the model cannot call one.
    "tool_choice none": (
        {"tools": [WEATHER], "tool_choice": "none"},
        {},
        {"tools": [WEATHER], "tool_choice": "none"},
    ),
    # Not every model server supports a choice by name, so only this tool is sent, and is required.
    "tool_choice by name": (
        {"tools": [WEATHER, LOOSE], "tool_choice": {"type": "function", "name": "weather"}},
        {"tools": [chat_function(WEATHER)], "tool_choice": "required"},
        {"tools": [WEATHER, LOOSE], "tool_choice": {"type": "function", "name": "weather"}},
    ),
    **{
        f"allowed_tools {mode}": (
            {
                "tools": [WEATHER, LOOSE],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": mode,
                    "tools": [{"type": "function", "name": "clock"}],
                },
            },
            {
                "tools": [
                    *([chat_function(WEATHER)] if mode == "auto" else []),
                    chat_function({"name": "clock", "parameters": {"type": "object", "properties": {}}}),
                ],
                "tool_choice": mode,
            },
            {
                "tools": [WEATHER, LOOSE],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": mode,
                    "tools": [{"type": "function", "name": "clock"}],
                },
            },
        )
        for mode in ("auto", "required")
    },
    **{
        f"parallel_tool_calls {parallel}": (
            {"tools": [WEATHER], "parallel_tool_calls": parallel},
            {"tools": [chat_function(WEATHER)], "parallel_tool_calls": parallel},
            {"tools": [WEATHER], "parallel_tool_calls": parallel},
        )
        for parallel in (True, False)
    },
    "parallel_tool_calls without tools": ({"parallel_tool_calls": False}, {}, {"parallel_tool_calls": False}),
    **{
        f"effort {effort}": (
            {"reasoning": {"effort": effort}},
            {"reasoning_effort": effort},
            {"reasoning": {"effort": effort, "summary": None, "context": "current_turn"}},
        )
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max")
    },
    **{
        f"service_tier {tier}": ({"service_tier": tier}, {"service_tier": tier}, {"service_tier": echoed})
        for tier, echoed in {
            "auto": "default",
            "default": "default",
            "flex": "flex",
            "scale": "scale",
            "priority": "priority",
            "fast": "priority",
            "ultrafast": "ultrafast",
        }.items()
    },
}


@pytest.mark.parametrize("case", FIELDS)
def test_request_field_reaches_the_model_server_and_the_response(
    client: openai.OpenAI, upstream: Upstream, case: str
) -> None:
    upstream.script(NAME, SAID)
    params, chat, response = FIELDS[case]
    created = create(client, model=MODEL, input="Hi", **params)
    assert sent(upstream) == CHAT | chat
    assert constant(created) == RESPONSE | response
    if params.get("store", True):
        assert stored(client, created["id"]) == created


def constant(response: Json) -> Json:
    """Return a response without its ids, times and output."""
    return {
        name: value for name, value in response.items() if name not in ("id", "created_at", "completed_at", "output")
    }


EVERYTHING: Final[Json] = {
    "access_programs": {"cyber": "standard"},
    "background": False,
    "include": ["message.output_text.logprobs"],
    "image": {"context_compression": "disabled"},
    "instructions": "Be brief.",
    "max_output_tokens": 100,
    "max_tool_calls": 5,
    "metadata": {"topic": "tests"},
    "parallel_tool_calls": False,
    "prompt_cache_key": "k1",
    "prompt_cache_options": {"mode": "explicit", "ttl": "12h"},
    "prompt_cache_retention": "in_memory",
    "reasoning": {"effort": "high", "summary": "concise", "context": "current_turn", "mode": "pro"},
    "safety_identifier": "s1",
    "service_tier": "flex",
    "store": True,
    "temperature": 0.5,
    "text": {
        "format": {"type": "json_schema", "name": "n", "description": "d", "schema": SCHEMA, "strict": True},
        "verbosity": "high",
    },
    "tool_choice": "required",
    "tools": [WEATHER],
    "top_logprobs": 2,
    "top_p": 0.9,
    "truncation": "disabled",
    "user": "ada",
}


def test_all_request_fields_together_reach_the_model_server(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    streamed = stream(client, model=MODEL, input="Hi", stream_options={"include_obfuscation": True}, **EVERYTHING)
    assert sent(upstream) == CHAT | {
        "messages": [{"role": "system", "content": "Be brief."}, *CHAT["messages"]],
        "max_completion_tokens": 100,
        "parallel_tool_calls": False,
        "prompt_cache_key": "k1",
        "prompt_cache_options": {"mode": "explicit", "ttl": "12h"},
        "prompt_cache_retention": "in_memory",
        "reasoning_effort": "high",
        "safety_identifier": "s1",
        "service_tier": "flex",
        "temperature": 0.5,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "description": "d", "schema": SCHEMA, "strict": True},
        },
        "verbosity": "high",
        "tool_choice": "required",
        "tools": [chat_function(WEATHER)],
        "logprobs": True,
        "top_logprobs": 2,
        "top_p": 0.9,
        "user": "ada",
    }
    echoed = {name: value for name, value in EVERYTHING.items() if name != "include"}
    assert constant(streamed.response) == RESPONSE | echoed
    assert constant(stored(client, streamed.response["id"])) == RESPONSE | echoed


UNSUPPORTED: Final[dict[str, Json]] = {
    "image": {"image": {"context_compression": "enabled"}},
    "tools[0].svg": {"tools": [{"type": "image_generation", "svg": {"model": "m"}}]},
}
"""Unsupported fields and values by the `param` of the error."""


@pytest.mark.parametrize("param", UNSUPPORTED)
def test_unsupported_field_or_value_is_400_with_its_name(client: openai.OpenAI, upstream: Upstream, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(**{"model": MODEL, "input": "Hi", **UNSUPPORTED[param]})
    assert raised.value.param == param
    assert raised.value.code in ("unsupported_parameter", "unsupported_value")
    assert upstream.requests() == []


def test_prewarm_has_the_model_server_read_the_prompt_and_answers_without_output(
    client: openai.OpenAI, upstream: Upstream
) -> None:
    options: Any = {"prewarm": True}
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
    upstream.script(NAME, reply(text("H"), finish("length"), usage=usage))
    streamed = stream(client, model=MODEL, input="Hi", max_output_tokens=50, prompt_cache_options=options)
    assert sent(upstream) == CHAT | {"max_completion_tokens": 1}
    assert streamed.types == ["created", "in_progress", "completed"]
    assert (streamed.response["status"], streamed.response["output"]) == ("completed", [])
    assert (streamed.response["usage"]["input_tokens"], streamed.response["usage"]["output_tokens"]) == (7, 0)
    assert streamed.response["prompt_cache_options"] == {"mode": "implicit", "ttl": "30m"}
    assert stored(client, streamed.response["id"]) == streamed.response
    upstream.script(NAME, reply(text("Hello.")))
    create(client, model=MODEL, input="there", previous_response_id=streamed.response["id"])
    assert [message["content"] for message in upstream.requests(NAME)[-1].body["messages"]] == ["Hi", "there"]


def test_every_request_field_of_the_sdk_is_tested() -> None:
    covered = {name for params, _, _ in FIELDS.values() for name in params} | set(EVERYTHING)
    covered |= {name for params in UNSUPPORTED.values() for name in params}
    elsewhere = {
        "model",
        "moderation",
        "input",
        "previous_response_id",
        "stream_options",
        "context_management",
        "prompt",
        "conversation",
    }
    assert set(ResponseCreateParamsBase.__annotations__) - covered == elsewhere


PASSED_ON: Final[Json] = {
    "seed": 7,
    "stop": ["END"],
    "top_k": 40,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "logit_bias": {"50256": -100},
    "chat_template_kwargs": {"enable_thinking": False},
    "cache_salt": "salt",
    "priority": -1,
}


@pytest.mark.parametrize("name", PASSED_ON)
def test_engine_specific_field_is_passed_through(client: openai.OpenAI, upstream: Upstream, name: str) -> None:
    upstream.script(NAME, SAID)
    response = create(client, model=MODEL, input="Hi", extra_body={name: PASSED_ON[name]})
    assert sent(upstream) == CHAT | {name: PASSED_ON[name]}
    assert constant(response) == RESPONSE


@pytest.mark.parametrize("unknown", [{"n": 3}, {"logprobs": True}, {"anything": {"a": 1}}])
def test_unknown_request_field_is_400(client: openai.OpenAI, upstream: Upstream, unknown: Json) -> None:
    [name] = unknown
    with pytest.raises(openai.BadRequestError, match=f"Unknown parameter: '{name}'") as caught:
        client.responses.create(model=MODEL, input="Hi", extra_body=unknown)
    assert (caught.value.code, caught.value.param) == ("unknown_parameter", name)
    assert upstream.requests() == []


def test_null_fields_are_treated_as_absent(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    names = set(ResponseCreateParamsBase.__annotations__) - {"model", "input"}
    response = create(client, model=MODEL, input="Hi", extra_body=dict.fromkeys(names | PASSED_ON.keys()))
    assert sent(upstream) == CHAT
    assert constant(response) == RESPONSE


# -- finish reasons and usage ------------------------------------------------------


ENDS: Final[dict[str, tuple[str, str | None, str]]] = {
    "stop": ("completed", None, "completed"),
    "eos": ("completed", None, "completed"),
    "tool_calls": ("completed", None, "completed"),
    "function_call": ("completed", None, "completed"),
    "something new": ("completed", None, "completed"),
    "length": ("incomplete", "max_output_tokens", "incomplete"),
    "content_filter": ("incomplete", "content_filter", "incomplete"),
    "safety": ("incomplete", "content_filter", "incomplete"),
    "abort": ("failed", None, "incomplete"),
    "error": ("failed", None, "incomplete"),
    "timeout": ("failed", None, "incomplete"),
}
"""By finish reason: the response's status, its reason, and the status of its last item."""


@pytest.mark.parametrize("reason", ENDS)
def test_finish_reason_determines_the_response_status(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, reason: str
) -> None:
    upstream.script(NAME, reply(text("Hel", "lo"), finish(reason)))
    status, why, item_status = ENDS[reason]
    response = stream(client, model=MODEL, input="Hi").response
    assert response["status"] == status
    assert response["incomplete_details"] == ({"reason": why} if why else None)
    assert (response["error"] is not None) == (status == "failed")
    [item] = response["output"]
    assert (item["status"], item["content"][0]["text"]) == (item_status, "Hello")
    assert stored(client, response["id"]) == response

    answer = wire.post({"model": MODEL, "input": "Hi"})
    if status == "failed":
        assert error_of(answer, 502)["message"] == response["error"]["message"]
    else:
        assert checked(answer)["status"] == status
    again = wire.listed(limit=1)[0]
    assert constant(again) == constant(response)
    assert again["output"] == [{**item, "id": again["output"][0]["id"]}]


def test_truncated_function_call_is_incomplete(client: openai.OpenAI, upstream: Upstream) -> None:
    call = [{"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"ci'}}]}]
    upstream.script(NAME, reply(call, finish("length")))
    response = create(client, model=MODEL, input="Hi", tools=[WEATHER], max_output_tokens=16)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    [item] = response["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", '{"ci')


def test_usage_details_of_the_model_server_are_reported(client: openai.OpenAI, upstream: Upstream) -> None:
    counted = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "total_tokens": 150,
        "prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 16, "audio_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 30, "audio_tokens": 1},
    }
    upstream.script(NAME, reply(text("Hello"), usage=counted))
    assert stream(client, model=MODEL, input="Hi").response["usage"] == {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 16},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 30},
        "total_tokens": 150,
    }


@pytest.mark.parametrize("tier", ["priority", "on_demand"])
def test_service_tier_of_the_model_server_is_reported(client: openai.OpenAI, upstream: Upstream, tier: str) -> None:
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "service_tier": tier}
    upstream.script(NAME, reply(text("Hello"), [last]))
    expected = tier if tier == "priority" else "default"  # clients cannot read values that the types lack
    assert create(client, model=MODEL, input="Hi", service_tier="auto")["service_tier"] == expected


# -- log probabilities -------------------------------------------------------------


PROBABLE: Final = reply(logprobs(("Hel", -0.25), ("lo", -1e30), top=[("Hel", -0.25), ("Ho", -1.5)]))
TOP: Final = [("Hel", -0.25), ("Ho", -1.5)]


def token(name: str, value: float, top: list[Json] | None = None) -> Json:
    """Return a token of a part's logprobs, with its top tokens if given."""
    found: Json = {"token": name, "logprob": value, "bytes": list(name.encode())}
    return found if top is None else {**found, "top_logprobs": top}


@pytest.mark.parametrize("asks", [{"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}])
def test_requested_logprobs_are_in_events_and_response(
    client: openai.OpenAI, upstream: Upstream, asks: Mapping[str, Any]
) -> None:
    upstream.script(NAME, PROBABLE)
    streamed = stream(client, model=MODEL, input="Hi", **asks)
    top = [token(*each) for each in TOP]
    expected = [token("Hel", -0.25, top), token("lo", -9999.0, top)]
    [part] = streamed.response["output"][0]["content"]
    assert part["logprobs"] == expected
    shown = [
        logprob for event in streamed.events if event["type"].endswith("text.delta") for logprob in event["logprobs"]
    ]
    assert [(each["token"], each["logprob"]) for each in shown] == [("Hel", -0.25), ("lo", -9999.0)]
    assert [[alternative["token"] for alternative in each["top_logprobs"]] for each in shown] == [["Hel", "Ho"]] * 2
    assert stored(client, streamed.response["id"]) == streamed.response


def test_logprobs_are_absent_unless_requested(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, PROBABLE)
    streamed = stream(client, model=MODEL, input="Hi")
    assert streamed.response["output"][0]["content"][0]["logprobs"] == []
    assert all(not event.get("logprobs") for event in streamed.events)


def test_message_with_logprobs_can_be_sent_back(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, PROBABLE)
    first = create(client, model=MODEL, input="Hi", top_logprobs=2)
    create(
        client,
        model=MODEL,
        input=[{"role": "user", "content": "Hi"}, *first["output"], {"role": "user", "content": "?"}],
    )
    assert upstream.requests(NAME)[-1].body["messages"][1] == {"role": "assistant", "content": "Hello"}
