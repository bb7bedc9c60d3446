"""Calls that a model server could not read: taken if they are whole and valid, else the model is asked again."""

from __future__ import annotations

from typing import Any, Final

import httpx2
import openai
import pytest

from llama_stack_responses.chat.malformed_calls import failed_call, malformed_call
from llama_stack_responses.core.errors import ApiError, MalformedCallError, UnusableAnswerError
from llama_stack_responses.model_server.errors import to_api_error
from tests.support.generation_harness import GenerationHarness
from tests.support.inference import Round, call, finish, reasoning, text

CITY: Final = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Final[Any] = [{"type": "function", "name": "weather", "parameters": CITY}]
WRITTEN: Final = '{"name": "weather", "arguments": {"city": "Oslo"}}'
CALLED: Final[Round] = [call("weather", "c1", '{"city": "Rome"}'), finish("tool_calls", tokens=5)]


def unread(written: str = "") -> MalformedCallError:
    return failed_call("Failed to call a function.", written)


def calls(harness: GenerationHarness) -> list[tuple[str, str]]:
    """Return the calls of the response, as (name, arguments)."""
    output = harness.assembler.final_output
    return [(item["name"], item["arguments"]) for item in output if item["type"] == "function_call"]


async def test_whole_call_is_taken_although_the_server_could_not_read_it() -> None:
    harness = GenerationHarness(unread(WRITTEN), makers={}, tools=TOOLS)
    await harness.end()
    assert calls(harness) == [("weather", '{"city": "Oslo"}')]
    assert len(harness.inference.requests) == 1


async def test_whole_call_behind_reasoning_and_text_is_taken() -> None:
    harness = GenerationHarness([reasoning("Hm."), text("Let me see."), unread(WRITTEN)], makers={}, tools=TOOLS)
    await harness.end()
    assert [item["type"] for item in harness.assembler.response["output"]] == ["reasoning", "message", "function_call"]


@pytest.mark.parametrize(
    "written",
    [
        '{"name": "weather", "arguments": {"city": 1}}',
        '{"name": "weather", "arguments": {}}',
        '{"name": "json", "arguments": {"city": "Oslo"}}',
        '{"name": "weather", "arguments": {"city": "Os',
        "",
    ],
    ids=["invalid", "incomplete", "of no tool", "half", "unknown"],
)
@pytest.mark.parametrize("begin", [[], [reasoning("Hm.")]], ids=["at once", "behind reasoning"])
async def test_model_is_asked_again_for_a_call_that_is_not_valid(written: str, begin: list[Any]) -> None:
    harness = GenerationHarness([*begin, unread(written)], CALLED, makers={}, tools=TOOLS)
    await harness.end()
    assert calls(harness) == [("weather", '{"city": "Rome"}')]
    [first, second] = (each["messages"] for each in harness.inference.requests)
    assert second[:-1] == first
    assert "Failed to call a function." in second[-1]["content"]
    assert written in second[-1]["content"]


async def test_model_is_asked_again_after_the_reason_of_gemini() -> None:
    malformed = [finish("function_call_filter: MALFORMED_FUNCTION_CALL")]
    harness = GenerationHarness(malformed, CALLED, makers={}, tools=TOOLS)
    await harness.end()
    assert calls(harness) == [("weather", '{"city": "Rome"}')]


async def test_model_is_asked_at_most_three_times() -> None:
    harness = GenerationHarness(*[unread()] * 3, CALLED, makers={}, tools=TOOLS)
    with pytest.raises(UnusableAnswerError, match="no call of a tool that its model server could read"):
        await harness.end()
    assert len(harness.inference.requests) == 3


async def test_model_that_has_said_something_is_not_asked_again() -> None:
    harness = GenerationHarness([text("Let me see."), unread()], CALLED, makers={}, tools=TOOLS)
    with pytest.raises(ApiError):
        await harness.end()
    assert len(harness.inference.requests) == 1


@pytest.mark.parametrize("how", [{"stream": False}, {"background": True}], ids=str)
async def test_text_of_each_try_is_not_repeated_in_a_failed_response(how: Any) -> None:
    tries = [[text("Let me see."), finish("TOO_MANY_TOOL_CALLS")]] * 3
    harness = GenerationHarness(*tries, makers={}, tools=TOOLS, **how)
    with pytest.raises(UnusableAnswerError):
        await harness.end()
    assert len(harness.inference.requests) == 3
    assert [item["type"] for item in harness.assembler.final_output] == ["message"]


@pytest.mark.parametrize("how", [{"stream": False}, {"background": True}], ids=str)
async def test_text_that_no_client_has_used_is_left_out(how: Any) -> None:
    harness = GenerationHarness([text("Let me see."), unread()], CALLED, makers={}, tools=TOOLS, **how)
    await harness.end()
    assert [item["type"] for item in harness.assembler.final_output] == ["function_call"]


@pytest.mark.parametrize("how", [{}, {"background": True}], ids=str)
async def test_model_that_has_called_a_tool_of_the_client_is_not_asked_again(how: Any) -> None:
    whole, half = call("weather", "c1", '{"city": "Oslo"}'), call("weather", "c2", '{"ci', index=1)
    harness = GenerationHarness([whole, half, unread()], CALLED, makers={}, tools=TOOLS, **how)
    with pytest.raises(ApiError):
        await harness.end()
    assert len(harness.inference.requests) == 1


async def test_output_that_cannot_be_read_is_requested_as_before_without_streaming() -> None:
    wrong = malformed_call("Invalid diff: now finding less tool calls!", None, None)
    assert wrong
    harness = GenerationHarness([call("weather", "c1", '{"ci'), wrong], [wrong], CALLED, makers={}, tools=TOOLS)
    await harness.end()
    assert calls(harness) == [("weather", '{"city": "Rome"}')]
    [first, second, third] = harness.inference.requests
    assert [each["stream"] for each in (first, second, third)] == [True, False, False]
    assert second["messages"] == first["messages"]
    assert "does not keep to the form" in third["messages"][-1]["content"]


@pytest.mark.parametrize("how", [{}, {"stream": False}], ids=str)
async def test_whole_calls_are_taken_though_what_is_behind_them_cannot_be_read(how: Any) -> None:
    """llama.cpp reads a call whose template's last bracket is missing, since the token limit cut it off."""
    wrong = malformed_call("Invalid diff: now finding less tool calls!", None, None)
    assert wrong
    harness = GenerationHarness(
        [call("weather", "c1", '{"city": "Rome"}'), wrong], CALLED, makers={}, tools=TOOLS, **how
    )
    await harness.end()
    assert calls(harness) == [("weather", '{"city": "Rome"}')]
    assert len(harness.inference.requests) == 1


@pytest.mark.parametrize("code", [None, "tool_use_failed"])
async def test_words_about_a_call_concern_the_request_if_it_has_no_tools(code: str | None) -> None:
    said = "Failed to parse tool call: it is no JSON"
    body = {"message": said, "code": code}
    response = httpx2.Response(400, request=httpx2.Request("POST", "http://localhost/v1/chat/completions"))
    wrong = to_api_error(openai.BadRequestError("no", response=response, body=body))
    harness = GenerationHarness(*[wrong] * 3, makers={})
    with pytest.raises(ApiError) as caught:
        await harness.end()
    assert len(harness.inference.requests) == (3 if code else 1)
    assert caught.value.status == (502 if code else 400)
    assert said in caught.value.message


async def test_whole_call_behind_half_a_call_is_not_taken() -> None:
    harness = GenerationHarness([call("weather", "c1", '{"ci'), unread(WRITTEN)], CALLED, makers={}, tools=TOOLS)
    await harness.end()
    assert calls(harness) == [("weather", '{"city": "Rome"}')]
