"""What servers say of calls that they could not read, and the calls in what the model wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llama_stack_responses.chat.malformed_calls import WrittenCall, malformed_call, told, written_calls

OSLO = '{"city": "Oslo"}'
ONE = [WrittenCall("weather", OSLO)]
TWO = [*ONE, WrittenCall("clock", "{}")]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        # gpt-oss on Groq
        ('{"name": "weather", "arguments": {"city": "Oslo"}}', ONE),
        (json.dumps({"name": "weather", "arguments": OSLO}), ONE),
        # Llama on Groq (groq-typescript issue 28, freellmapi pull request 291, smolagents issue 1119)
        ('```\n{"tool_calls": [{"id": "a", "function": {"name": "weather"}, "parameters": {}}]}\n```', []),
        ('```json\n{"tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}]}\n```', ONE),
        ('[{"name": "weather", "parameters": {"city": "Oslo"}}, {"name": "clock", "parameters": {}}]', TWO),
        (f"<function=weather>{OSLO}</function>", ONE),
        (f"<function=weather={OSLO}</function>", ONE),
        (f"<function=weather{OSLO}</function>\n", ONE),
        (f"<function=weather({OSLO})</function><function=clock>{{}}</function>", TWO),
        (f"weather{OSLO}</function>", ONE),
        ('<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>', ONE),
        # What is no whole call, or more than calls
        (f"I will look. <function=weather>{OSLO}</function>", []),
        (f"<function=weather>{OSLO}</function> That is it.", []),
        ('<function=weather>{"city": "Os', []),
        ('{"name": "weather", "arguments": "Oslo"}', []),
        ('{"name": "weather", "arguments": ["Oslo"]}', []),
        ('{"city": "Oslo"}', []),
        ("Tool use failed: JSON does not match the expected schema for tool calls", []),
        ("[" * 10_000, []),
        (f"{'x' * 10_000}{OSLO}", []),
        (f"<function=weather>{OSLO}</function>" * 100, []),
        ("", []),
    ],
)
def test_calls_in_a_text_are_read_if_there_is_nothing_else(text: str, calls: list[WrittenCall]) -> None:
    assert written_calls(text) == calls


@pytest.mark.parametrize(
    ("message", "code", "body", "words", "written"),
    [
        (
            "Failed to call a function. Please adjust your prompt.",
            "tool_use_failed",
            {"message": "Failed to call a function.", "code": "tool_use_failed", "failed_generation": "<x"},
            "Failed to call a function.",
            "<x",
        ),
        # LiteLLM before Groq
        (
            'litellm.BadRequestError: GroqException - {"error":{"message":"Failed to call a function.",'
            '"code":"tool_use_failed","failed_generation":"<x"}}',
            "400",
            {"message": "litellm"},
            "Failed to call a function.",
            "<x",
        ),
        ("Tool error: EOF while parsing an object", None, {}, "Tool error: EOF while parsing an object", ""),
        ("error parsing tool call: raw='{\"a\":', err=unexpected end", None, {}, "error parsing tool call", '{"a":'),
        ("error parsing tool call: raw='{\"a\":1}]', err=", None, None, "error parsing tool call", '{"a":1}]'),
        ('error parsing tool call: raw=\'{"a":1}', None, "x", "error parsing tool call", '{"a":1}'),
        ("Failed to parse tool call: Unexpected end of content.", None, {}, "Failed to parse tool call: U", ""),
        ("Failed to parse input at pos 170: <tool_call>", None, {}, "it does not keep to the form", ""),
        ("The model produced output that does not match the expected peg-native format", None, {}, "it does not k", ""),
    ],
)
def test_error_about_the_answer_of_the_model_is_told_from_others(
    message: str, code: str | None, body: Any, words: str, written: str
) -> None:
    error = malformed_call(message, code, body)
    assert error
    assert error.words.startswith(words)
    assert error.written == written
    asked = told(error)
    assert asked["role"] == "user"
    assert written in asked["content"]


@pytest.mark.parametrize(
    "message",
    [
        # Of the history
        "Failed to parse tool call arguments as JSON: [json.exception.parse_error.101]",
        "Failed to generate JSON. Please adjust your prompt. See 'failed_generation' for more details.",
        "Unsupported parameter: 'tools'",
        "messages.1.tool_calls: invalid function call in the history",
        "Unknown role: developer",
        "The model does not support function calls",
        "Failed to parse tool call in messages[1]: arguments must be valid JSON",
        "tool error: quota exceeded",
        "No function provided for tool message",
        "The model produced an image that is invalid",
        "The model generated audio that is malformed",
        "limit 3100 exceeded",
        "Failed to parse tool call in message 3: arguments must be valid JSON",
        "Error parsing tool calls: messages/1/tool_calls/0 has no arguments",
        "Failed to parse function call at contents[1].parts[0]",
        "Error parsing tool call of an assistant message",
        "Failed to parse tool calls in the conversation history",
        "Failed to parse tool call: rate limit reached",
    ],
)
def test_error_about_the_request_is_another(message: str) -> None:
    assert malformed_call(message, "3100" if "3100" in message else None, {"message": message}) is None


def test_error_that_names_a_place_in_the_messages_is_another() -> None:
    message = "Failed to parse tool call: it is no JSON"
    assert malformed_call(message, None, {"message": message})
    for place in ({"param": "messages[1].tool_calls"}, {"detail": [{"loc": ["body", "messages", 1, "tool_calls"]}]}):
        assert malformed_call(message, None, {"message": message, **place}) is None


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Parsing failed. The model generated output that could not be parsed.", "output_parse_failed"),  # Groq
        ("Parsing failed. The model generated output that could not be parsed.", None),
        ("Failed to generate tool_calls. Please adjust your prompt.", "tool_call_failed"),  # Cerebras
        ("Failed to generate tool_calls. Please adjust your prompt.", None),
        ("The model produced an invalid tool call: Expecting ',' delimiter", "incomplete_json_output"),
        ("The model produced an invalid tool call: Expecting ',' delimiter", None),
        ("Unknown role: functions", None),  # vLLM with gpt-oss
        ("Model generated invalid tool call: Unexpected end of content", None),  # LM Studio
        ("Model produced invalid sequence as part of ToolUse. Please refer to the guide.", None),  # Bedrock
        ("XML syntax error on line 3: element <parameter> closed by </function>", None),  # Ollama
        ("Failed to parse fc related info to json format!", None),  # SGLang
        ("Model produced an invalid function call", "3100"),  # Mistral
        (
            "tool call validation failed: attempted to call tool 'x' which was not in request.tools",
            "tool_use_failed",
        ),
        ("tool call validation failed: attempted to call tool 'x' which was not in request.tools", None),
        ("Error parsing tool calls: Expecting value", None),  # Together
        ('error parsing tool call: raw=\'{"to": "messages[0]", "in": "a tool message"\', err=end', None),
        ('Failed to parse tool call: {"name": "f", "arguments": {"role": "user"', None),
    ],
)
def test_error_about_the_answer_is_told_by_its_words_or_its_code(message: str, code: Any) -> None:
    error = malformed_call(message, code, {"message": message})
    assert error
    assert error.by_words is (code in (None, "3100") and not message.startswith("Unknown role"))


def test_required_call_that_did_not_come_is_another() -> None:
    message = "Tool choice is required, but model did not call a tool"
    assert malformed_call(message, "tool_use_failed", {"message": message, "failed_generation": "Hi"}) is None
