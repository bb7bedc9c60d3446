"""Tool choices and formats that a model server refuses: asked for in words."""

import json
from typing import Any

import pytest

from llama_stack_responses.chat.adaptation.adaptation import Step
from llama_stack_responses.chat.adaptation.enforced import CALL, FORMAT, SCHEMA, Expectation, expected
from llama_stack_responses.chat.adaptation.refusal import Refusal
from llama_stack_responses.chat.adaptation.registry import adapted, asked_by
from llama_stack_responses.chat.adaptation.schema_task import invalid, read

type Json = dict[str, Any]

CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
BASE: Json = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}
STRUCTURED: Json = BASE | {
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": CITY, "strict": True}}
}
OBJECT: Json = BASE | {"response_format": {"type": "json_object"}}
REQUIRED: Json = BASE | {
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": {}}}],
    "tool_choice": "required",
}


@pytest.mark.parametrize(
    ("chat", "text", "kind"),
    [
        # DeepSeek (llm-exe issue 662, browser-use pull request 215)
        (STRUCTURED, "This response_format type is unavailable now", SCHEMA),
        (STRUCTURED, "response_format: response_format.type `json_schema` is unavailable now at line 1", SCHEMA),
        # Groq
        (STRUCTURED, "This model does not support response format `json_schema`. See supported models", SCHEMA),
        # LM Studio
        (OBJECT, "'response_format.type' must be 'json_schema' or 'text'", "json_object_as_schema"),
        (OBJECT, "This response_format type is unavailable now", FORMAT),
        # DeepSeek in its thinking mode (DeepSeek-V3 issue 1376)
        (REQUIRED, "Thinking mode does not support this tool_choice", CALL),
        # OpenRouter
        (REQUIRED, "No endpoints found that support the provided 'tool_choice' value.", CALL),
        # Cerebras (llm-cerebras issue 6), LM Studio (pi issue 4266), Bedrock (strands issue 1241), Groq
        (STRUCTURED, "type: Input should be 'text'", SCHEMA),
        # Gemini, with tools
        (STRUCTURED, "Function calling with a response mime type: 'application/json' is unsupported", SCHEMA),
        (OBJECT, "Function calling with a response mime type: 'application/json' is unsupported", FORMAT),
        (REQUIRED, "Invalid tool_choice type: 'object'. Supported string values: none, auto, required", CALL),
        (REQUIRED, "This model doesn't support the toolConfig.toolChoice.any field.", CALL),
        (REQUIRED, "Forced tool calling is not supported by this model", CALL),
        (REQUIRED, "Forced function calling (mode ANY) is not supported", CALL),
        (REQUIRED, "Function calling config mode ANY is not supported", CALL),
        (REQUIRED, "This model does not support required tool use", CALL),
        (STRUCTURED, "structured_outputs is not available", SCHEMA),
        (STRUCTURED, "The output_config.format is not supported", SCHEMA),
        (REQUIRED, "Tool choice is required, but model did not call a tool", CALL),
    ],
)
def test_refused_demand_is_asked_for_in_words(chat: Json, text: str, kind: str) -> None:
    assert asked_by(Refusal(400, text), chat) == [Step(kind)]


@pytest.mark.parametrize(
    "text",
    [
        "Tool choice 'g' not found in 'tools' parameter.",
        "'tool_choice' is only allowed when 'tools' are specified.",
    ],
)
def test_choice_that_does_not_fit_the_tools_is_the_clients_error(text: str) -> None:
    assert asked_by(Refusal(400, text, places=("tool_choice",)), REQUIRED) == []


@pytest.mark.parametrize(
    "text",
    [
        "Invalid schema for response_format 'n': In context=(), 'required' is required to be supplied.",
        'Failed to compile the grammar: Unimplemented keys: ["patternProperties"]',
    ],
)
def test_refusal_of_one_schema_is_remembered_of_that_schema(text: str) -> None:
    refusal = Refusal(400, text)
    [step] = [each for each in asked_by(refusal, STRUCTURED) if each.kind == SCHEMA]
    ordered = {**CITY, "required": ["city"], "properties": CITY["properties"]}
    same, other = (with_schema(each) for each in (dict(reversed(ordered.items())), {"type": "object"}))
    assert [adapted(each, (step,))[1] for each in (STRUCTURED, same, other)] == [(step,), (step,), ()]


def with_schema(schema: Json) -> Json:
    """Return a chat request for an answer with this schema."""
    form = STRUCTURED["response_format"]
    return STRUCTURED | {"response_format": {**form, "json_schema": {**form["json_schema"], "schema": schema}}}


@pytest.mark.parametrize(
    "text",
    [
        # llama.cpp, of requests with tools only
        "Content path must be a string",
        # Groq
        "Failed to generate JSON. Please adjust your prompt. See 'failed_generation' for more details.",
    ],
)
def test_refusal_of_one_answer_asks_for_it_in_words(text: str) -> None:
    assert Step(SCHEMA) in asked_by(Refusal(400, text), STRUCTURED)


def test_schema_becomes_json_object_with_instructions_in_the_first_system_message() -> None:
    chat, applied = adapted(STRUCTURED, (Step(SCHEMA),))
    assert chat["response_format"] == {"type": "json_object"}
    [system, user] = chat["messages"]
    assert system["content"].startswith("Be brief.\n\n")
    assert json.dumps(CITY) in system["content"]
    assert user == BASE["messages"][1]
    assert expected(STRUCTURED, applied) == Expectation(schema=CITY)
    assert STRUCTURED["messages"][0]["content"] == "Be brief.", "the request itself is not changed"


def test_formats_that_are_all_refused_become_words_alone() -> None:
    chat, applied = adapted(STRUCTURED, (Step(SCHEMA), Step(FORMAT)))
    assert "response_format" not in chat
    assert chat["messages"][0]["content"].count("nothing else") == 1
    assert expected(STRUCTURED, applied) == Expectation(schema=CITY)


def test_required_call_becomes_instructions() -> None:
    chat, applied = adapted(REQUIRED, (Step(CALL),))
    assert "tool_choice" not in chat
    assert "the tool 'weather'" in chat["messages"][0]["content"]
    assert expected(REQUIRED, applied) == Expectation(call=True)


@pytest.mark.parametrize("chat", [BASE, REQUIRED | {"tool_choice": "auto"}])
def test_request_without_the_demand_stays_as_it_is(chat: Json) -> None:
    same, applied = adapted(chat, (Step(CALL), Step(SCHEMA), Step(FORMAT)))
    assert same is chat
    assert applied == ()
    assert expected(chat, applied) is None


def test_instructions_come_first_without_a_system_message() -> None:
    chat, _ = adapted(STRUCTURED | {"messages": [{"role": "user", "content": "Hi"}]}, (Step(SCHEMA),))
    assert [each["role"] for each in chat["messages"]] == ["system", "user"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"city": "Oslo"}', ""),
        ('{"city": 1}', "1 is not of type 'string' at ['city']."),
        ("{}", "'city' is a required property."),
        ("Oslo", "it is not JSON"),
        ('{"city": NaN}', "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
    ],
)
def test_answer_is_checked_against_the_schema(text: str, problem: str) -> None:
    assert invalid(text, CITY).startswith(problem) if problem else not invalid(text, CITY)
    assert read(json.dumps({"text": text, "schema": CITY}).encode(), {}) == {"text": invalid(text, CITY)}


@pytest.mark.parametrize("schema", [{"$ref": "http://127.0.0.1:9/s"}, {"type": 7}, {"pattern": "("}, {"$ref": "#"}])
def test_schema_that_cannot_be_used_accepts_any_json(schema: Json) -> None:
    assert invalid('"x"', schema) == ""


def test_problem_is_short() -> None:
    assert len(invalid(json.dumps("x" * 10_000), {"type": "object"})) < 600
