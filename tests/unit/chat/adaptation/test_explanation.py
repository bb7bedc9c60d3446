"""Refusals against which nothing helps, in OpenAI's terms."""

from typing import Any

import pytest

from llama_stack_responses.chat.adaptation.explanation import explained
from llama_stack_responses.chat.adaptation.refusal import Refusal, RefusedError, places_of, plain
from llama_stack_responses.core.errors import ApiError

type Json = dict[str, Any]

TOOL: Json = {"type": "function", "function": {"name": "f", "parameters": {}}}
CHAT: Json = {
    "model": "m",
    "messages": [],
    "reasoning_effort": "low",
    "response_format": {"type": "json_schema"},
    "tools": [TOOL, {"type": "function", "function": TOOL["function"] | {"strict": True}}],
    "tool_choice": "auto",
    "max_completion_tokens": 99,
    "temperature": 3,
}


def shown(text: str, status: int = 400, error: ApiError | None = None, body: Any = None) -> ApiError:
    """Return the error of a client."""
    error = error or ApiError(502 if status >= 500 else 400, f"failed: {text}")
    return explained(RefusedError(error, Refusal(status, text, places=places_of(body, text))), CHAT)


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("response_format is not supported", "text.format"),
        ("Structured outputs are not supported by this model", "text.format"),
        ("Unsupported value: 'reasoning_effort'", "reasoning.effort"),
        ("Unknown parameter: 'tools[1].function.strict'", "tools[1].strict"),
        ("'strict' is not supported", "tools[1].strict"),
        ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', "tool_choice"),
        ("max_completion_tokens is too large", "max_output_tokens"),
        ("too many tokens: max tokens must be less than or equal to 4096, the maximum output", "max_output_tokens"),
        # DeepSeek, Ollama, OpenRouter
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", "max_output_tokens"),
        ("registry.ollama.ai/library/deepseek-r1:14b does not support tools", "tools"),
        ("No endpoints found that support tool use. To learn more, visit: https://openrouter.ai/docs", "tools"),
        ("'tools' is not supported with this model", "tools"),
        ("Invalid 'temperature': must be at most 2", "temperature"),
    ],
)
def test_refusal_names_the_field_of_the_responses_api(text: str, param: str) -> None:
    error = shown(text)
    assert (error.status, error.type, error.param) == (400, "invalid_request_error", param)
    assert error.message.startswith(text)


def test_model_without_what_the_request_has_is_not_called_missing() -> None:
    unknown = ApiError(400, "not found", code="model_not_found", param="model")
    error = shown("No endpoints found that can handle the requested parameters.", 404, unknown)
    assert (error.status, error.code, error.param) == (400, None, None)
    assert "docs/guides/model-servers.md" in error.message
    missing = shown("No endpoints found for a/b.", 404, unknown)
    assert (missing.code, missing.param) == ("model_not_found", "model")


def test_refusal_of_something_unsupported_says_what_to_set() -> None:
    assert "docs/guides/model-servers.md" in shown("response_format is not supported").message
    assert "docs/guides/model-servers.md" not in shown("Invalid 'temperature': must be at most 2").message


def test_refusal_with_the_status_of_a_server_is_a_400() -> None:
    error = shown("'tools' is not supported with this model", 500)
    assert (error.status, error.param) == (400, "tools")


def test_model_server_without_a_parser_for_calls_takes_no_tools() -> None:
    text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    chat = {name: value for name, value in CHAT.items() if name != "tool_choice"}
    error = explained(RefusedError(ApiError(400, text), Refusal(400, text)), chat)
    assert (error.status, error.param) == (400, "tools")


def test_failure_of_the_server_stays_one() -> None:
    error = shown("CUDA error in tools: out of memory", 500)
    assert (error.status, error.param) == (502, None)


@pytest.mark.parametrize("name", ["min_p", "seed"])
def test_field_at_the_place_of_a_refusal_is_named(name: str) -> None:
    """It need not be in the request that this package makes: a profile may add it."""
    error = shown("no number", 422, body={"detail": [{"loc": ["body", name], "msg": "no number"}]})
    assert (error.status, error.param) == (400, name)


def test_refusal_without_a_field_is_left_as_it_is() -> None:
    assert shown("no such thing as min_p").message == "failed: no such thing as min_p"


def test_model_that_no_endpoint_serves_so_is_no_unknown_model() -> None:
    unknown = ApiError(404, "no", param="model", code="model_not_found")
    error = shown("No endpoints found that support the provided 'tool_choice' value.", 404, unknown)
    assert (error.status, error.param, error.code) == (400, "tool_choice", None)
    assert shown("The model 'm' does not exist", 404, unknown).status == 404


VLLM = (
    "[{'type': 'extra_forbidden', 'loc': ('body', 'tools', 0, 'function', 'strict'), "
    "'msg': 'Extra inputs are not permitted', 'input': True}]"
)
MISTRAL = (
    '{"detail":[{"type":"extra_forbidden","loc":["body","user"],"msg":"Extra inputs are not permitted","input":0}]}'
)


@pytest.mark.parametrize(
    ("text", "words", "places"),
    [
        (VLLM, "body.tools.0.function.strict: Extra inputs are not permitted", ("tools.function.strict",)),
        (MISTRAL, "body.user: Extra inputs are not permitted", ("user",)),
        (MISTRAL.replace('"', '\\"'), "body.user: Extra inputs are not permitted", ("user",)),
        ("Be quiet.", "Be quiet.", ()),
    ],
)
def test_list_in_the_text_becomes_words(text: str, words: str, places: tuple[str, ...]) -> None:
    assert plain(text) == words
    assert places_of(None, text) == places


def test_hostile_list_is_read_in_time() -> None:
    assert plain("['loc': (" * 10_000)
    assert plain(VLLM * 1_000).count("Extra") <= 32
