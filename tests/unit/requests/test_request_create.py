"""The request body: every field of OpenAI's, its allowed values, and the errors for wrong ones."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from openai.types.responses import ResponseIncludable
from openai.types.responses.response_create_params import (
    ResponseCreateParamsBase,
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from openai.types.responses.service_tier import ServiceTier
from openai.types.shared.reasoning_effort import ReasoningEffort
from openai.types.shared_params import Reasoning

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.shapes import RequestLimits
from llama_stack_responses.requests.request import DEFAULT_PASSTHROUGH, FIELDS, CreateRequest, parse_create

Json = dict[str, Any]

MODEL = "openai/gpt-oss-20b"
PREVIOUS = "resp_0123456789abcdef"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}

FULL: Json = {
    "model": MODEL,
    "input": [{"role": "user", "content": "hi"}],
    "access_programs": {"cyber": "standard"},
    "background": False,
    "background_options": {"completion_window": "soonest", "continuation_id": "c"},
    "context_management": [],
    "image": {"context_compression": "disabled"},
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "instructions": "Be short.",
    "max_output_tokens": 100,
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "moderation": {"model": "m", "policy": {"input": {"mode": "block"}, "output": {"mode": "score"}}},
    "parallel_tool_calls": False,
    "previous_response_id": PREVIOUS,
    "prompt": {"id": "p", "variables": {"a": "b", "c": {"type": "input_text", "text": "d"}}, "version": "1"},
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit", "ttl": "12h", "prewarm": False, "comparison_response_id": "resp_1"},
    "prompt_cache_retention": "24h",
    "reasoning": {
        "effort": "max",
        "summary": "auto",
        "generate_summary": "concise",
        "context": "all_turns",
        "mode": "pro",
    },
    "safety_identifier": "s",
    "service_tier": "flex",
    "store": False,
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "temperature": 0.5,
    "text": {
        "format": {"type": "json_schema", "name": "n", "description": "d", "schema": SCHEMA, "strict": True},
        "verbosity": "low",
    },
    "tool_choice": {"type": "function", "name": "f"},
    "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}],
    "top_logprobs": 5,
    "top_p": 0.25,
    "truncation": "disabled",
    "user": "u",
}


def body(**changes: Any) -> Json:
    return {"model": MODEL, "input": "hi", **changes}


def parse(**changes: Any) -> CreateRequest:
    return parse_create(body(**changes))


def refused(value: Any, **limits: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_create(value, limits=RequestLimits(**limits))
    assert caught.value.status == 400
    assert caught.value.type == "invalid_request_error"
    return caught.value


# Fields


def declared_fields() -> set[str]:
    kinds = (ResponseCreateParamsBase, ResponseCreateParamsNonStreaming, ResponseCreateParamsStreaming)
    return {name for kind in kinds for name in get_type_hints(kind)}


def test_fields_of_openai_are_all_there() -> None:
    assert declared_fields() <= FIELDS
    # A conversation and a previous response exclude each other.
    assert FULL.keys() | {"conversation"} == declared_fields()


def test_every_field_is_parsed() -> None:
    request = parse_create(FULL)
    for name, value in FULL.items():
        if name != "tools":
            assert getattr(request, name) == value, name
    content = [{"type": "input_text", "text": "hi"}]
    assert request.input_items == [{"type": "message", "role": "user", "content": content}]
    assert request.tools[0]["name"] == "f"


@pytest.mark.parametrize("conversation", ["conv_1", {"id": "conv_1"}, {"id": "conv_1", "object": "conversation"}])
def test_conversation_is_parsed_to_id(conversation: Any) -> None:
    assert parse_create({"model": MODEL, "conversation": conversation}).conversation == "conv_1"


def test_error_of_a_missing_input_names_every_field_that_replaces_it() -> None:
    others = {"previous_response_id": PREVIOUS, "conversation": "conv_1", "prompt": {"id": "p"}}
    message = refused({"model": MODEL}).message
    for name, value in others.items():
        assert parse_create({"model": MODEL, name: value}).input is None
        assert f"'{name}'" in message


def test_long_completion_window_is_allowed_for_background_responses() -> None:
    options = {"completion_window": "8h", "continuation_id": "c"}
    assert parse(background=True, background_options=options).background_options == options


def test_null_fields_equal_missing_fields() -> None:
    nulls = dict.fromkeys(declared_fields() - {"model", "input"})
    assert parse(**nulls) == parse()


def test_missing_fields_have_defaults() -> None:
    request = parse()
    assert (request.store, request.stream, request.background, request.truncation) == (True, False, False, "disabled")
    assert (request.tools, request.include, request.metadata, request.passthrough) == ([], (), {}, {})
    assert (request.tool_choice, request.temperature, request.top_p, request.parallel_tool_calls) == (None,) * 4


def test_unknown_fields_are_ignored_or_passed_through() -> None:
    request = parse(seed=1, top_k=None, chat_template_kwargs={"a": [1]}, whatever=3, reasoning={"new": 1})
    assert request.passthrough == {"seed": 1, "chat_template_kwargs": {"a": [1]}}
    assert request.reasoning == {}


def test_unknown_field_is_refused_if_configured() -> None:
    known = {"model": "m", "input": "hi", "seed": 1, "whatever": None, "client_metadata": {}, "max_infer_iters": 3}
    assert parse_create(known, refuse_unknown=True).passthrough == {"seed": 1}
    with pytest.raises(ApiError) as caught:
        parse_create({**known, "whatever": 3}, refuse_unknown=True)
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "unknown_parameter", "whatever")
    assert error.message.startswith("Unknown parameter: 'whatever'.")


_FUNCTION = {"type": "function", "name": "f"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": {"foo": 1}}, "text.foo"),
        ({"text": {"format": {"type": "json_object", "name": "x"}}}, "text.format.name"),
        ({"reasoning": {"effort": "low", "foo": {}}}, "reasoning.foo"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"tools": [_FUNCTION], "tool_choice": {**_FUNCTION, "foo": 1}}, "tool_choice.foo"),
        ({"tools": [_FUNCTION, {"type": "web_search", "foo": 1}]}, "tools[1].foo"),
        ({"tools": [{"type": "web_search", "filters": {"foo": []}}]}, "tools[0].filters.foo"),
        ({"tools": [{"type": "mcp", "server_label": "a", "server_url": "http://b", "url": "c"}]}, "tools[0].url"),
    ],
)
def test_unknown_name_inside_a_field_is_refused_if_configured(fields: dict[str, Any], param: str) -> None:
    body = {"model": "m", "input": "hi", **fields}
    parse_create(body)
    with pytest.raises(ApiError) as caught:
        parse_create(body, refuse_unknown=True)
    assert (caught.value.code, caught.value.param) == ("unknown_parameter", param)
    assert caught.value.message == f"Unknown parameter: '{param}'."


def test_unknown_names_in_items_and_nulls_are_ignored_always() -> None:
    item = {"role": "user", "content": [{"type": "input_text", "text": "hi", "parsed": 1}], "new": {"a": 1}}
    body = {"model": "m", "input": [item], "text": {"foo": None}, "guardrails": [{"type": "a", "foo": 1}]}
    assert parse_create(body, refuse_unknown=True).text == {}


def test_missing_name_is_named_before_unknown_ones() -> None:
    """The form of tools in the Chat Completions API gets the error that OpenAI sends."""
    body = {"model": "m", "input": "hi", "tools": [{"type": "function", "function": {"name": "f"}}]}
    with pytest.raises(ApiError) as caught:
        parse_create(body, refuse_unknown=True)
    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", "tools[0].name")


def test_engine_fields_are_passed_through() -> None:
    engine = {
        "seed": 1,
        "stop": ["a"],
        "top_k": 1,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "chat_template_kwargs": {},
        "cache_salt": "a",
        "priority": 1,
        "logit_bias": {},
    }
    assert parse(**engine).passthrough == engine
    assert engine.keys() == DEFAULT_PASSTHROUGH


def test_passthrough_setting_never_includes_openai_fields() -> None:
    request = parse_create(body(seed=1, mine=2, temperature=1), passthrough=frozenset({"mine", "temperature"}))
    assert request.passthrough == {"mine": 2}


@pytest.mark.parametrize(
    ("changes", "wants"),
    [
        ({}, False),
        ({"include": ["message.output_text.logprobs"]}, True),
        ({"top_logprobs": 1}, True),
        ({"top_logprobs": 0}, False),
    ],
)
def test_logprobs_are_wanted_by_include_or_top_logprobs(changes: Json, wants: bool) -> None:
    assert parse(**changes).wants_logprobs is wants


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("include", [[value] for value in get_args(ResponseIncludable)]),
        ("service_tier", get_args(get_args(ServiceTier)[0])),
        ("reasoning", [{"effort": value} for value in get_args(get_args(ReasoningEffort)[0])]),
        (
            "reasoning",
            [{"context": "auto"}, {"context": "current_turn"}, {"summary": "detailed"}, {"mode": "standard"}],
        ),
        ("prompt_cache_retention", ["in_memory"]),
        ("access_programs", [{"cyber": "daybreak_blue"}, {"cyber": "daybreak_red"}, {}]),
        ("text", [{"format": {"type": "text"}}, {"format": {"type": "json_object"}}, {"verbosity": "high"}, {}]),
        ("temperature", [0.0, 2.0]),
        ("top_p", [0.0, 1.0]),
        ("top_logprobs", [0, 20]),
        ("max_output_tokens", [16]),
        ("max_tool_calls", [1]),
        ("safety_identifier", ["s" * 128]),
    ],
)
def test_allowed_values_are_accepted(field: str, values: Any) -> None:
    assert values
    for value in values:
        assert getattr(parse(**{field: value}), field) == value


def test_reasoning_fields_are_openais() -> None:
    assert FULL["reasoning"].keys() == get_type_hints(Reasoning).keys()


# Refused requests


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "a", [], [FULL]])
def test_body_must_be_object(value: Any) -> None:
    error = refused(value)
    assert (error.param, error.code) == (None, "invalid_type")
    assert error.message.startswith("Invalid request body: expected a JSON object, but got")


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": ""}, "model", "empty_string"),
        ({"model": 3}, "model", "invalid_type"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "missing_required_parameter"),
        ({"input": [{"role": "user", "content": [{"type": "text"}]}]}, "input[0].content[0].type", "invalid_value"),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"temperature": float("nan")}, "temperature", "invalid_value"),
        ({"frequency_penalty": 2.1}, "frequency_penalty", "decimal_above_max_value"),
        ({"presence_penalty": -2.1}, "presence_penalty", "decimal_below_min_value"),
        ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
        ({"temperature": -1}, "temperature", "decimal_below_min_value"),
        ({"top_p": 1.1}, "top_p", "decimal_above_max_value"),
        ({"top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
        ({"top_logprobs": -1}, "top_logprobs", "integer_below_min_value"),
        ({"top_logprobs": True}, "top_logprobs", "invalid_type"),
        ({"max_output_tokens": 15}, "max_output_tokens", "integer_below_min_value"),
        ({"max_output_tokens": 1.0}, "max_output_tokens", "invalid_type"),
        ({"max_output_tokens": 2**31}, "max_output_tokens", "integer_above_max_value"),
        ({"max_tool_calls": 0}, "max_tool_calls", "integer_below_min_value"),
        ({"store": 1}, "store", "invalid_type"),
        ({"stream": "true"}, "stream", "invalid_type"),
        ({"background": 1}, "background", "invalid_type"),
        ({"instructions": ["a"]}, "instructions", "invalid_type"),
        ({"include": "reasoning"}, "include", "invalid_type"),
        ({"include": ["reasoning"]}, "include[0]", "invalid_value"),
        ({"metadata": []}, "metadata", "invalid_type"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"metadata": {"a": "b" * 513}}, "metadata.a", "string_above_max_length"),
        ({"metadata": {"a" * 65: "b"}}, "metadata", "string_above_max_length"),
        ({"metadata": {str(i): "b" for i in range(17)}}, "metadata", "object_above_max_properties"),
        ({"previous_response_id": "resp_"}, "previous_response_id", "invalid_value"),
        ({"previous_response_id": 1}, "previous_response_id", "invalid_type"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
        ({"reasoning": {"summary": True}}, "reasoning.summary", "invalid_type"),
        ({"reasoning": "high"}, "reasoning", "invalid_type"),
        ({"text": {"verbosity": "none"}}, "text.verbosity", "invalid_value"),
        ({"text": {"format": {}}}, "text.format.type", "missing_required_parameter"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n"}}},
            "text.format.schema",
            "missing_required_parameter",
        ),
        (
            {"text": {"format": {"type": "json_schema", "json_schema": {"name": "n"}}}},
            "text.format.name",
            "missing_required_parameter",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": "{}"}}},
            "text.format.schema",
            "invalid_type",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}},
            "text.format.name",
            "invalid_value",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "a\n", "schema": {}}}},
            "text.format.name",
            "invalid_value",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "a" * 65, "schema": {}}}},
            "text.format.name",
            "string_above_max_length",
        ),
        ({"service_tier": "slow"}, "service_tier", "invalid_value"),
        ({"truncation": "none"}, "truncation", "invalid_value"),
        ({"stream_options": {}}, "stream_options", None),
        (
            {"stream": True, "stream_options": {"include_obfuscation": "no"}},
            "stream_options.include_obfuscation",
            "invalid_type",
        ),
        ({"safety_identifier": "s" * 129}, "safety_identifier", "string_above_max_length"),
        ({"prompt_cache_key": "k" * 513}, "prompt_cache_key", "string_above_max_length"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl", "invalid_value"),
        ({"prompt_cache_retention": "1h"}, "prompt_cache_retention", "invalid_value"),
        ({"user": 7}, "user", "invalid_type"),
        ({"background_options": {"completion_window": "1h"}}, "background_options.completion_window", "invalid_value"),
        ({"background_options": {"completion_window": "2h"}}, "background_options.completion_window", None),
        (
            {"background": True, "stream": True, "background_options": {"completion_window": "8h"}},
            "background_options.completion_window",
            None,
        ),
        (
            {"background": True, "background_options": {"completion_window": "2h"}, "service_tier": "flex"},
            "service_tier",
            None,
        ),
        ({"background_options": {"continuation_id": ""}}, "background_options.continuation_id", "empty_string"),
        ({"image": {"context_compression": "on"}}, "image.context_compression", "invalid_value"),
        ({"access_programs": {"cyber": "x"}}, "access_programs.cyber", "invalid_value"),
        ({"conversation": 1}, "conversation", "invalid_type"),
        ({"conversation": {}}, "conversation.id", "missing_required_parameter"),
        ({"conversation": "chat_1"}, "conversation", "invalid_value"),
        ({"conversation": {"id": "conv_a/b"}}, "conversation.id", "invalid_value"),
        ({"prompt": {"version": "1"}}, "prompt.id", "missing_required_parameter"),
        ({"prompt": {"id": "p", "variables": {"a": 1}}}, "prompt.variables.a", "invalid_type"),
        (
            {"prompt": {"id": "p", "variables": {"a": {"type": "input_audio"}}}},
            "prompt.variables.a.type",
            "invalid_value",
        ),
        (
            {"prompt": {"id": "p", "variables": {"a": {"type": "input_file"}}}},
            "prompt.variables.a.file_data",
            "missing_required_parameter",
        ),
        (
            {"moderation": {"model": "m", "policy": {"input": {"mode": "x"}}}},
            "moderation.policy.input.mode",
            "invalid_value",
        ),
        ({"guardrails": "guard"}, "guardrails", "invalid_type"),
        ({"guardrails": [""]}, "guardrails[0]", "empty_string"),
        ({"guardrails": [{"type": 1}]}, "guardrails[0].type", "invalid_type"),
        ({"guardrails": [{}]}, "guardrails[0].type", "missing_required_parameter"),
        ({"guardrails": ["guard"] * 17}, "guardrails", "array_above_max_length"),
        ({"guardrails": ["guard"], "moderation": {"model": "m"}}, "guardrails", "mutually_exclusive_parameters"),
        ({"context_management": [{"type": "x"}]}, "context_management[0].type", "invalid_value"),
        (
            {"previous_response_id": PREVIOUS, "conversation": "conv_1"},
            "previous_response_id",
            "mutually_exclusive_parameters",
        ),
    ],
)
def test_invalid_value_is_refused_with_its_position(changes: Json, param: str, code: str | None) -> None:
    error = refused(body(**changes))
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, []),
        (False, []),
        ([], []),
        (True, [None]),
        (["a", {"type": "b", "threshold": 1}], ["a", "b"]),
    ],
)
def test_guardrails_are_parsed(given: Any, names: list[str | None]) -> None:
    assert list(parse(guardrails=given).guardrails) == names


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image", {"context_compression": "enabled"}),
    ],
)
def test_unsupported_features_are_refused_by_name(field: str, value: Any) -> None:
    error = refused(body(**{field: value}))
    assert (error.param, error.code) == (field, "unsupported_parameter")
    assert f"'{field}" in error.message
    assert "not supported by this server" in error.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "Missing required parameter: 'model'."),
        (
            {"temperature": "hot"},
            "Invalid type for 'temperature': expected a number, but got a string instead.",
        ),
        (
            {"temperature": 3},
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 3 instead.",
        ),
        (
            {"max_output_tokens": 15},
            "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 15 instead.",
        ),
        ({"truncation": "foo"}, "Invalid value: 'foo'. Supported values are: 'auto' and 'disabled'."),
        ({"text": {"verbosity": "x"}}, "Invalid value: 'x'. Supported values are: 'low', 'medium', and 'high'."),
        (
            {"user": "u" * 513},
            "Invalid 'user': string too long. Expected a string with maximum length 512, "
            "but got a string with length 513 instead.",
        ),
        (
            {"metadata": {str(i): "" for i in range(17)}},
            "Invalid 'metadata': too many properties. Expected an object with at most 16 properties, "
            "but got an object with 17 properties instead.",
        ),
        ({"stream_options": {}}, "The 'stream_options' parameter is only allowed when 'stream' is enabled."),
    ],
)
def test_field_errors_are_worded_like_openais(changes: Json, message: str) -> None:
    assert refused(body(**changes)).message == message


def test_input_may_be_omitted_with_previous_response() -> None:
    request = parse_create({"model": MODEL, "previous_response_id": PREVIOUS})
    assert (request.input, request.input_items) == (None, [])
    assert parse_create({"model": MODEL, "previous_response_id": PREVIOUS, "input": []}).input_items == []


def test_metadata_at_limits_is_accepted() -> None:
    metadata = {f"{i:064}": "b" * 512 for i in range(15)} | {"": ""}
    assert parse(metadata=metadata).metadata == metadata


def test_limits_apply_to_every_field() -> None:
    assert refused(body(instructions="abcd"), max_text_length=3).param == "instructions"
    assert refused(body(input="abcd"), max_text_length=3).param == "input"


def nested(depth: int) -> Json:
    schema: Json = {}
    for _ in range(depth):
        schema = {"a": schema}
    return schema


@pytest.mark.parametrize(
    "value",
    [
        body(input="\ud800"),
        body(user="\udfff"),
        body(metadata={"\ud800": "a"}),
        body(seed=2**64),
        body(max_output_tokens=10**5000),
        body(tools=[{"type": "function", "name": "f", "parameters": nested(2000)}]),
    ],
)
def test_values_not_representable_in_json_are_refused(value: Json) -> None:
    assert refused(value).code == "invalid_value"


@pytest.mark.parametrize(
    ("name", "value", "moved_to"),
    [
        ("max_tokens", 5, "max_output_tokens"),
        ("max_completion_tokens", 5, "max_output_tokens"),
        ("messages", [], "input"),
        ("response_format", {"type": "json_object"}, "text.format"),
        ("reasoning_effort", "low", "reasoning.effort"),
        ("verbosity", "low", "text.verbosity"),
        ("functions", [], "tools"),
        ("function_call", "auto", "tool_choice"),
    ],
)
def test_chat_completions_field_is_refused_with_responses_name(name: str, value: Any, moved_to: str) -> None:
    with pytest.raises(ApiError) as raised:
        parse(**{name: value})
    error = raised.value
    assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")
    assert f"'{moved_to}'" in error.message
    assert parse(**{name: None}) == parse()
    assert parse_create(body(**{name: value}), passthrough=frozenset({name})).passthrough == {name: value}
