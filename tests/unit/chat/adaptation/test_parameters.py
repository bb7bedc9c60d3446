"""What refusals of real model servers ask for; the texts are those of public bug reports."""

import json
from typing import Any

import pytest

from llama_stack_responses.chat.adaptation.adaptation import Step
from llama_stack_responses.chat.adaptation.refusal import Refusal, places_of
from llama_stack_responses.chat.adaptation.registry import adapted, asked_by, in_order, tell, walks_messages

type Json = dict[str, Any]

BASE: Json = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
TOOL: Json = {"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}


def asked(chat: Json, text: str, *, status: int = 400, body: Any = None, code: str = "") -> set[str]:
    """Return what a refusal asks for, in words."""
    return set(map(str, asked_by(Refusal(status, text, code, places_of(body)), BASE | chat)))


FORBIDDEN = "Extra inputs are not permitted"


@pytest.mark.parametrize(
    ("chat", "text"),
    [
        # OpenAI o4-mini (fast-agent issue 279)
        (
            {"parallel_tool_calls": True},
            "Unsupported parameter: 'parallel_tool_calls' is not supported with this model.",
        ),
        # Azure (azure-sdk-for-net issue 45719)
        ({"parallel_tool_calls": True}, "Unrecognized request argument supplied: parallel_tool_calls"),
        # stdapi.ai issue 90
        ({"parallel_tool_calls": False}, "Value error, parallel_tool_calls=False is not supported on this backend."),
        # xAI (n8n issue 14581, open-webui issue 21266)
        ({"presence_penalty": 0.5}, "Argument not supported on this model: presencePenalty"),
        ({"presence_penalty": 0.5}, "Model grok-4-1-fast-reasoning does not support parameter presencePenalty."),
        # Gemini (SkyrimNet issue 77)
        (
            {"frequency_penalty": 0.5},
            'Invalid JSON payload received. Unknown name "frequency_penalty": Cannot find field.',
        ),
        # Groq
        ({"logprobs": True}, "`logprobs` is not supported with this model"),
        ({"prompt_cache_key": "k"}, "property 'prompt_cache_key' is unsupported"),
        # LiteLLM
        (
            {"service_tier": "flex"},
            "litellm.UnsupportedParamsError: ollama does not support parameters: ['service_tier']",
        ),
        # vLLM of older versions
        ({"stream_options": {"include_usage": True}}, "Unknown field: stream_options"),
        ({"user": "u"}, "Unknown parameter: 'user'."),
        ({"user": "u"}, "body.user: unrecognized key"),
        ({"user": "u"}, "Unsupported parameter(s): user"),
        ({"user": "u"}, "Invalid request: user length must be >= 6"),
        ({"user": "u"}, "参数 user 不合法"),
        ({"user": "u"}, "参数user不合法"),
        ({"user": "u"}, "user参数长度错误"),
        ({"top_p": 0.5}, "`top_p` cannot be modified for this model"),
        ({"temperature": 0.5}, "'temperature' must not be changed for this model"),
        # Fireworks, Bedrock, OpenAI's models that reason
        ({"prompt_cache_key": "k"}, "Extra inputs are not permitted, field: 'prompt_cache_key', value: 'k'"),
        ({"stream_options": {}}, "Malformed input request: extraneous key [stream_options] is not permitted"),
        # NVIDIA NIM (garak issue 748), Azure (langchain issue 29679, quarkus-langchain4j issue 285)
        (
            {"presence_penalty": 0.5, "frequency_penalty": 0.5},
            "body -> frequency_penalty\n  Extra inputs are not permitted (type=extra_forbidden)\n"
            "body -> presence_penalty\n  Extra inputs are not permitted (type=extra_forbidden)",
        ),
        (
            {"user": "u"},
            "Extra parameters ['parallel_tool_calls', 'user'] are not allowed when extra-parameters is not set",
        ),
        (
            {"prompt_cache_key": "k", "user": "u"},
            "Unrecognized request arguments supplied: prompt_cache_key, user",
        ),
        # Kimi (sgo issue 1)
        ({"temperature": 0.2}, "invalid temperature: only 1 is allowed for this model"),
        ({"top_p": 0.2}, "invalid top_p: only 0.95 is allowed for this model"),
        # Databricks (duckdb-ai issue 85)
        ({"temperature": 0.2}, "BAD_REQUEST: Model eu.anthropic.claude does not support the temperature parameter."),
        # Bedrock
        ({"top_p": 0.5}, "`temperature` and `top_p` cannot both be specified for this model. Please use only one."),
        # Anthropic
        ({"temperature": 0.5}, "`temperature` may only be set to 1 when thinking is enabled."),
        ({"verbosity": "low"}, "unknown variant `verbosity`, expected one of `model`, `messages`"),
    ],
)
def test_parameter_that_only_steers_is_dropped_when_named(chat: Json, text: str) -> None:
    assert asked(chat, text) == {f"drop {name}" for name in chat}


FULL: Json = {
    "user": "u",
    "temperature": 0.3,
    "top_p": 0.8,
    "stream_options": {"include_usage": True},
    "max_completion_tokens": 60,
    "tool_choice": "required",
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
    "reasoning_effort": "low",
    "tools": [TOOL],
}
TAKEN = ("model", "messages", "temperature", "top_p", "stream_options", "stream", "tools", "tool_choice", "json_schema",
         "max_completion_tokens", "response_format", "grammar", "parallel_tool_calls", "reasoning_effort")  # fmt: skip
QUOTED = ", ".join(f"`{name}`" for name in TAKEN)
BARE = ", ".join(TAKEN)


@pytest.mark.parametrize(
    "text",
    [
        # serde: mistral.rs, Cloudflare, DeepSeek
        "Failed to deserialize the JSON body into the target type: unknown field `user`, expected one of "
        f"{QUOTED} at line 1 column 99",
        f"Unsupported parameter: user. Supported parameters: {BARE}",
        f"Unsupported parameter: user. The supported parameters are {BARE}.",
        f"Unsupported parameter: user. Supported parameters for this model:\n- {BARE.replace(', ', chr(10) + '- ')}",
        f"Unrecognized parameter 'user'. Allowed: {list(TAKEN)}",
        f"'user' is not one of {list(TAKEN)}",
        f"Unknown parameter: user (must be one of: {QUOTED})",
        f"Only {QUOTED} are supported. Unknown parameter: 'user'.",
        f"Only {BARE} are supported. Unknown parameter: 'user'.",
        f"This model supports only {BARE}. Unknown parameter: 'user'.",
        f"Unknown parameter: 'user'. Received {list(TAKEN)}",
        f"Unknown parameter: 'user'. Received {BARE}",
        "Unknown parameter: user. Request: " + json.dumps({"model": "m", "messages": [{"role": "user"}], **FULL}),
        "Unknown parameter: user, input_value=" + repr({"model": "m", **FULL})[:150],
        "Unknown parameter: user in Request(model='m', messages=[{'role': 'user'}], temperature=0.3, top_p=0.8, "
        "stream_options={'include_usage': True}, tool_choice='required')",
    ],
)
def test_only_the_refused_name_is_dropped_beside_a_list_of_accepted_ones(text: str) -> None:
    assert asked(FULL, text) == {"drop user"}


@pytest.mark.parametrize(
    "text",
    [
        "Unknown field 'safety_identifier'. Did you mean 'user'?",
        "Unknown field 'safety_identifier'; use 'user' instead",
        "'safety_identifier' is deprecated in favor of 'user'",
    ],
)
def test_name_that_a_server_suggests_is_kept(text: str) -> None:
    assert asked({"safety_identifier": "s", "user": "u"}, text) == {"drop safety_identifier"}


@pytest.mark.parametrize(
    "text",
    [
        "The following parameters are not supported: `temperature`, `top_p`",
        "Parameters that are no longer supported: `temperature`, `top_p`",
        "For this model, parameters `temperature` and `top_p` are not supported.",
        "Not in the list of supported parameters: temperature, top_p.",
        'Invalid request: {"error": {"message": "Unsupported parameters: temperature, top_p", "model": "m"}}',
    ],
)
def test_list_of_what_is_not_accepted_is_read(text: str) -> None:
    assert asked({"temperature": 0.5, "top_p": 0.5}, text) == {"drop temperature", "drop top_p"}


def test_hint_is_kept_where_its_name_is_an_accepted_value_of_another_field() -> None:
    assert asked({"user": "u"}, "messages.1.role: Input should be 'system', 'user' or 'assistant'") == set()


@pytest.mark.parametrize("status", [400, 422, 500])
def test_each_place_of_a_list_of_invalid_fields_is_dropped(status: int) -> None:
    # Mistral (openclaude issue 739), as it nests the list
    detail = [
        {"type": "extra_forbidden", "loc": ["body", name], "msg": FORBIDDEN, "input": False}
        for name in ("store", "prompt_cache_key", "parallel_tool_calls")
    ]
    chat: Json = {"store": False, "prompt_cache_key": "k", "parallel_tool_calls": True, "user": "u"}
    body = {"object": "error", "message": {"detail": detail}, "type": "invalid_request_error", "param": None}
    expected = {"drop store", "drop prompt_cache_key", "drop parallel_tool_calls"}
    assert asked(chat, FORBIDDEN, status=status, body=body) == expected


def test_only_one_of_two_parameters_that_exclude_each_other_is_dropped() -> None:
    text = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
    assert asked({"temperature": 0.5, "top_p": 0.5}, text) == {"drop top_p"}


@pytest.mark.parametrize("param", ["validation_error", "body", "request"])
def test_place_that_is_no_parameter_leaves_it_to_the_text(param: str) -> None:
    # Cerebras
    body = {"message": "property 'prompt_cache_key' is unsupported", "param": param, "code": "wrong_api_format"}
    assert asked({"prompt_cache_key": "k"}, body["message"], body=body) == {"drop prompt_cache_key"}


def test_strict_is_dropped_where_it_is_named() -> None:
    chat = {"tools": [TOOL]}
    body = {"detail": [{"loc": ["body", "tools", 0, "function", "strict"], "msg": FORBIDDEN}]}
    assert asked(chat, FORBIDDEN, body=body) == {"drop tools.function.strict"}
    assert asked(chat, "'tools[0].function.strict' is not supported") == {"drop tools.function.strict"}
    changed, _ = adapted(BASE | chat, in_order([Step("drop", "tools.function.strict")]))
    assert changed["tools"] == [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert chat["tools"] == [TOOL], "the request itself is not changed"


def test_hint_within_messages_is_dropped_there() -> None:
    part = {"type": "text", "text": "Hi"}
    marked = part | {"prompt_cache_breakpoint": {"mode": "explicit"}}
    chat: Json = {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": [marked, part]}]}
    loc = ["body", "messages", 1, "user", "content", 0, "prompt_cache_breakpoint"]
    path = "messages.content.prompt_cache_breakpoint"
    assert asked(chat, FORBIDDEN, body={"detail": [{"loc": loc, "msg": FORBIDDEN}]}) == {f"drop {path}"}
    changed, _ = adapted(BASE | chat, (Step("drop", path),))
    assert changed["messages"] == [{"role": "system", "content": "x"}, {"role": "user", "content": [part, part]}]
    assert walks_messages([Step("drop", path)])
    assert not walks_messages([Step("drop", "user")])


@pytest.mark.parametrize(
    ("effort", "text", "expected"),
    [
        # OpenAI
        ("minimal", "Unsupported value: 'minimal' is not supported. Supported values are: 'low', 'medium', and 'high'.", "low"),
        # Kimi (openhanako issue 2092)
        ("medium", "'reasoning_effort' does not support 'medium' with this model. Supported: 'low', 'high', and 'max'.", "high"),
        # CLIProxyAPI issue 1307
        ("xhigh", "Validation error for `reasoning_effort`: expected one of `'low' | 'medium' | 'high'`, received `'xhigh'`.", "high"),
        # quotio issue 287
        ("max", 'level "max" not supported, valid levels: low, medium, high, xhigh', "xhigh"),
        # edutelligence issue 749
        ("high", "Unexpected reasoning effort high. Supported types are xhigh (default), medium, and low.", "xhigh"),
        # Groq's Qwen
        ("low", "`reasoning_effort` must be one of `none` or `default`", "default"),
        # Mistral (mistral-vibe issue 1117)
        ("medium", "reasoning_effort: supported values are ['low', 'high', 'max']", "high"),
        ("none", "reasoning_effort: Input should be 'low', 'medium' or 'high'", "low"),
        # Ollama
        ("xhigh", "invalid reasoning value: 'xhigh' (must be \"high\", \"medium\", \"low\", \"max\", or \"none\")", "max"),
        ("minimal", "invalid think value: \"minimal\" (must be \"high\", \"medium\", \"low\", true, or false)", "low"),
        # OpenRouter
        ("xhigh", 'reasoning.effort: Invalid option: expected one of "max"|"high"|"medium"|"low"|"none"', "max"),
    ],
)  # fmt: skip
def test_effort_is_mapped_to_the_nearest_one_that_the_server_names(effort: str, text: str, expected: str) -> None:
    body = {"param": "reasoning_effort"} if "reasoning" not in text else None
    assert asked({"reasoning_effort": effort}, text, body=body) == {f"map reasoning_effort {effort} {expected}"}


@pytest.mark.parametrize(
    "text",
    [
        # OpenRouter, Gemini
        "Reasoning is mandatory for this endpoint and cannot be disabled.",
        "Budget 0 is invalid. This model only works in thinking mode.",
        "Thinking cannot be turned off for this model",
        "You can not disable thinking for this model",
    ],
)
def test_model_that_always_reasons_is_asked_for_the_least_effort(text: str) -> None:
    assert asked({"reasoning_effort": "none"}, text) == {"map reasoning_effort none low"}
    assert asked({"reasoning_effort": "high"}, text) == set()


@pytest.mark.parametrize(
    "text",
    [
        "Model grok-4 does not support parameter reasoningEffort.",
        "Unrecognized request argument supplied: reasoning_effort",
        "Reasoning effort is not supported for this model.",
        # Ollama, Volcengine (Roo-Code issue 11001), OpenAI (pydantic-ai issue 4667)
        '"llama3.2" does not support thinking',
        "Invalid combination of reasoning_effort and thinking type: low + disabled",
        "Function tools with reasoning_effort are not supported for gpt-5.4 in /v1/chat/completions.",
        # Vertex behind LiteLLM (OpenHands issue 1630)
        'Vertex_aiException - {"error":{"message":"output_config: Extra inputs are not permitted"}}',
    ],
)
def test_effort_is_dropped_where_the_model_has_none(text: str) -> None:
    assert asked({"reasoning_effort": "low"}, text) == {"drop reasoning_effort"}


@pytest.mark.parametrize(
    "text",
    [
        "Invalid value: 'xhigh'. Supported values are: 'none', 'minimal', 'low', 'medium', and 'high'.",
        "Input should be 'low', 'medium' or 'high' [type=literal_error, input_value='xhigh', input_type=str]",
    ],
)
def test_effort_is_known_by_the_list_of_others(text: str) -> None:
    assert asked({"reasoning_effort": "xhigh"}, text) == {"map reasoning_effort xhigh high"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Unsupported value: 'reasoning_effort' does not support 'xhigh' with this model.",
            "map reasoning_effort xhigh None",
        ),
        ("Unsupported parameter: 'reasoning_effort' is not supported with this model.", "drop reasoning_effort"),
        ('invalid thinking.type: "enabled" (allowed: adaptive, disabled) (2013)', "drop reasoning_effort"),
        (
            "The thinking budget 32768 is invalid. Please choose a value between 128 and 24576.",
            "map reasoning_effort xhigh high",
        ),
        ("thinking_budget must be <= 24576", "map reasoning_effort xhigh high"),
        ("budget_tokens: 65536 exceeds maximum 32000", "map reasoning_effort xhigh high"),
        (
            "litellm.UnsupportedParamsError: ollama_chat does not support parameters: {'reasoning_effort': 'xhigh'}",
            "drop reasoning_effort",
        ),
    ],
)
def test_refusal_of_one_effort_leaves_others(text: str, expected: str) -> None:
    [step] = asked_by(Refusal(400, text), BASE | {"reasoning_effort": "xhigh"})
    assert str(step) == expected


@pytest.mark.parametrize(
    ("words", "other"),
    [
        ("temperature: value above 1 not supported", 1),
        ("temperature 1.5 is not accepted, try a value below 1", 1),
        ("temperature>1 is not supported", 1),
        ("temperature 1.5 unsupported (valid: 0..1)", 1),
        ("The temperature parameter is illegal: 1.5 unsupported; use 0.0-1.0", 1),
        ("temperature \u4e0d\u652f\u6301 1.5\uff0c\u8303\u56f4 0-1", 1),
        (
            "Unsupported value: 'temperature' does not support 1.5 with this model. Only the values 0 through 1 are "
            "supported.",
            1,
        ),
        ("Unsupported value: 'temperature' does not support 1.5. Only the default (1) value is supported.", 1),
        ("Invalid 'temperature': 1.5 is unsupported, value must be <= 1", 1),
        ("temperature must be \u2264 1 (unsupported value 1.5)", 1),
        ("temperature=1.5 not allowed, allowed range [0, 1]", 1),
        ("temperature is too large: 1.5, at most 1.2", 1.2),
        ("temperature: unsupported value 1.5", None),
        ("temperature exceeds 0.9, which is not supported", 0.9),
        ("temperature 1.5 is not allowed for this model; choose 0 to 1", 1),
        ("Invalid 'temperature': decimal above maximum value. Expected a value <= 1, but got 1.5 instead.", 1),
    ],
)
def test_value_that_is_refused_becomes_the_nearest_one_and_no_other_value_changes(
    words: str, other: float | None
) -> None:
    [step] = asked_by(Refusal(400, words), BASE | {"temperature": 1.5})
    assert step == Step("map", ("temperature", 1.5, other))
    assert adapted(BASE | {"temperature": 1.5}, [step])[0].get("temperature") == other
    assert adapted(BASE | {"temperature": 0.5}, [step])[1] == ()
    response: dict[str, Any] = {"temperature": 1.5}
    tell(response, [step])
    assert response["temperature"] == (1.0 if other is None else other)


@pytest.mark.parametrize(
    "words",
    [
        "temperature is not supported with gpt-5.4",
        "Unsupported parameter: 'temperature' is not supported with this model.",
        "temperature is not supported by qwen-2.5-72b",
    ],
)
def test_parameter_that_is_refused_with_any_value_is_dropped(words: str) -> None:
    assert asked_by(Refusal(400, words), BASE | {"temperature": 1.5}) == [Step("drop", "temperature")]


@pytest.mark.parametrize(
    ("words", "places", "names"),
    [
        (
            "Extra inputs are not permitted: user, service_tier, prompt_cache_key",
            (),
            {"user", "service_tier", "prompt_cache_key"},
        ),
        ("The following parameters are not supported: [user; service_tier]", (), {"user", "service_tier"}),
        ("parallel_tool_calls and user are not permitted", (), {"parallel_tool_calls", "user"}),
        ("'user' is not allowed", ("metadata",), {"user"}),
        ("Unknown fields: store, user", (), {"store", "user"}),
        ("Unknown field: tools[0].function.strict", (), {"tools.function.strict"}),
        ("Unknown field: tools[0].function.strict.", (), {"tools.function.strict"}),
        ("the user and the store are not allowed to do this", (), set()),
    ],
)
def test_parameters_in_a_list_are_dropped(words: str, places: tuple[str, ...], names: set[str]) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}
    hints = {"user": "u", "store": True, "service_tier": "flex", "prompt_cache_key": "k", "metadata": {"a": "b"}}
    chat = BASE | hints | {"tools": [tool], "parallel_tool_calls": True}
    assert set(asked_by(Refusal(400, words, places=places), chat)) == {Step("drop", name) for name in names}


@pytest.mark.parametrize(
    ("name", "other", "text"),
    [
        ("max_tokens", "max_completion_tokens", "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."),
        ("max_completion_tokens", "max_tokens", FORBIDDEN),
        ("max_completion_tokens", "max_tokens", "property 'max_completion_tokens' is unsupported, did you mean 'max_tokens'?"),
    ],
)  # fmt: skip
def test_limit_on_tokens_is_renamed(name: str, other: str, text: str) -> None:
    body = {"detail": [{"loc": ["body", name], "msg": FORBIDDEN}]} if text == FORBIDDEN else None
    assert asked({name: 9}, text, body=body) == {f"rename {name} {other}"}
    assert adapted(BASE | {name: 9}, (Step("rename", (name, other)),))[0] == BASE | {other: 9}


@pytest.mark.parametrize(
    ("chat", "text"),
    [
        # A value that the client has to correct.
        ({"max_tokens": 10**6}, "max_tokens is too large: 1000000. This model supports at most 4096 completion tokens."),
        # Words of a sentence that are no parameters.
        ({"user": "u"}, "Last message must have role user and must not be empty."),
        # What no change of a parameter helps against.
        ({}, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        ({"user": "u"}, "The model is overloaded."),
        # Kinds of requests that cannot do without it.
        ({"tools": [TOOL]}, "Unsupported parameter: 'tools' is not supported with this model."),
        ({}, "Unsupported parameter: 'messages'"),
    ],
)  # fmt: skip
def test_nothing_is_changed_that_would_change_the_answer(chat: Json, text: str) -> None:
    assert asked(chat, text) == set()


def test_thinking_mode_that_refuses_a_tool_choice_leaves_the_effort() -> None:
    # DeepSeek (DeepSeek-V3 issue 1376)
    chat = {"reasoning_effort": "high", "tools": [TOOL], "tool_choice": "required"}
    assert not {each for each in asked(chat, "Thinking mode does not support this tool_choice") if "effort" in each}


def test_response_says_how_the_model_server_was_asked() -> None:
    effort = {"effort": "minimal", "summary": None}
    response: Json = {
        "parallel_tool_calls": False,
        "service_tier": "flex",
        "reasoning": effort,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "top_logprobs": 3,
        "tools": [{"type": "function", "strict": True}],
    }
    steps = [
        Step("map", ("reasoning_effort", "minimal", "low")),
        *(Step("drop", name) for name in ("parallel_tool_calls", "service_tier", "verbosity", "logprobs")),
        Step("drop", "tools.function.strict"),
    ]
    tell(response, steps)
    assert response == {
        "parallel_tool_calls": True,
        "service_tier": "default",
        "reasoning": {"effort": "low", "summary": None},
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "top_logprobs": 0,
        "tools": [{"type": "function", "strict": False}],
    }
    assert effort["effort"] == "minimal", "what was sent in an event is not changed"


def test_response_says_what_was_added_to_the_request() -> None:
    response: Json = {"temperature": 1.0, "reasoning": {"effort": None}, "text": {"verbosity": "medium"}, "tools": []}
    added = {"temperature": 0.5, "reasoning_effort": "low", "verbosity": "low", "tools": [TOOL], "top_k": 7}
    tell(response, [Step("add", pair) for pair in added.items()])
    assert response == {
        "temperature": 0.5,
        "reasoning": {"effort": "low"},
        "text": {"verbosity": "low"},
        "tools": [],
    }


def test_places_of_all_kinds_of_errors_are_read() -> None:
    azure = {"message": "no", "param": "response_format", "code": None}
    google = [{"error": {"details": [{"fieldViolations": [{"field": "tools[0].function", "description": "no"}]}]}}]
    zod = {"issues": [{"code": "unrecognized_keys", "path": ["body", "user"]}]}
    assert places_of(azure) == ("response_format",)
    assert places_of(google) == ("tools.function",)
    assert places_of(zod) == ("user",)
    assert places_of([{"loc": []}] * 99) == ()
    assert places_of("text") == ()


def test_places_of_a_huge_error_are_bounded() -> None:
    assert len(places_of({"detail": [{"loc": ["body", f"x{n}"]} for n in range(10_000)]})) <= 32
    nested: Any = {"param": "deep"}
    for _ in range(100):
        nested = {"error": nested}
    assert places_of(nested) == ()


@pytest.mark.parametrize(
    ("param", "text", "steps"),
    [
        ("tools", "tool_choice required is not supported", {"tool_choice_in_words"}),
        ("tools", "parallel_tool_calls: not permitted", {"drop parallel_tool_calls"}),
        ("model", "service_tier flex is not supported for this model", {"drop service_tier"}),
        ("reasoning_effort", "temperature is not supported with reasoning", {"drop temperature"}),
        ("response_format", "'strict' is not supported", {"drop response_format.json_schema.strict"}),
        ("temperature", "temperature is not supported with reasoning_effort", {"drop temperature"}),
    ],
)
def test_parameter_with_which_a_text_begins_counts_more_than_the_named_place(
    param: str, text: str, steps: set[str]
) -> None:
    chat = {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "service_tier": "flex",
        "temperature": 0.5,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": True}},
    }
    asked_for = asked_by(Refusal(400, text, "", (param,)), BASE | chat)
    assert {f"{each.kind} {each.argument or ''}".strip() for each in asked_for} == steps
