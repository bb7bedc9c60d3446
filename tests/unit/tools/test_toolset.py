"""The calls that are accepted, and what the model is told about refused ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.schema.request import CreateRequest
from llama_stack_responses.core.stream.assembler import Assembler
from llama_stack_responses.core.stream.calls import FUNCTION, ServerCall
from llama_stack_responses.core.stream.response import new_response
from llama_stack_responses.core.unavailable_tools import HostedTool, Policy, Unavailable
from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.generation.tool_execution import ToolExecution
from llama_stack_responses.telemetry.telemetry import Telemetry
from llama_stack_responses.tools.client.function import FunctionTool
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.tool import Function
from llama_stack_responses.tools.toolset import Toolset

Json = dict[str, Any]


def function(name: str, **more: Any) -> Json:
    return {"type": "function", "name": name, "parameters": None, "strict": None, **more}


def allowed(*names: str) -> Json:
    return {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": name} for name in names]}


TOOLS = [function("f"), function("g")]
NO_STAGEHAND: Any = None
"""No tool here emits events during preparation."""


class Asked(FunctionTool):
    """A function tool that counts the calls of `functions`."""

    times = 0

    def functions(self) -> Sequence[Function]:
        self.times += 1
        return super().functions()


def made(tools: list[Json], choice: str | Json | None, *, parallel: bool = True) -> Toolset:
    request = CreateRequest(model="m", tools=tools, tool_choice=choice, parallel_tool_calls=parallel)
    return Toolset(request, client_tools())


@pytest.mark.parametrize("choice", [None, "auto", "required"])
def test_calls_of_declared_tools_are_accepted(choice: str | Json | None) -> None:
    toolset = made(TOOLS, choice)
    assert [toolset.kind_of(name) for name in ("f", "g", "f")] == [FUNCTION] * 3


def test_call_of_unknown_tool_is_refused() -> None:
    toolset = made(TOOLS, None)
    assert toolset.kind_of("h") is None
    assert toolset.kind_of("") is None
    assert toolset.refusal(ServerCall("h", "1", "{}")) == "There is no tool named 'h'. Tools that may be called: f, g."


def test_disallowed_tool_is_offered_but_its_call_refused() -> None:
    toolset = made(TOOLS, allowed("g"))
    assert len(toolset.offer()[0]) == 2
    assert toolset.kind_of("f") is None
    assert toolset.kind_of("g") is FUNCTION
    told = toolset.refusal(ServerCall("f", "1", "{}"))
    assert told == "The tool 'f' cannot be called in this turn. Tools that may be called: g."


def test_required_call_of_allowed_tools_offers_only_those() -> None:
    toolset = made(TOOLS, allowed("g") | {"mode": "required"})
    seen, choice = toolset.offer()
    assert ([each["function"]["name"] for each in seen], choice) == (["g"], "required")


@pytest.mark.parametrize(("choice", "goes"), [("none", []), ({"type": "function", "name": "g"}, ["g"])])
def test_tool_choice_is_enforced_on_calls(choice: str | Json, goes: list[str]) -> None:
    toolset = made(TOOLS, choice)
    assert [name for name in ("f", "g") if toolset.kind_of(name)] == goes


def test_tool_chosen_by_name_is_accepted_once() -> None:
    toolset = made(TOOLS, {"type": "function", "name": "g"})
    assert toolset.kind_of("g") is FUNCTION
    assert toolset.kind_of("g") is None


def test_only_one_call_is_accepted_if_not_parallel() -> None:
    toolset = made(TOOLS, None, parallel=False)
    assert toolset.kind_of("h") is None
    assert toolset.kind_of("g") is FUNCTION
    assert toolset.kind_of("f") is None


def test_refusal_without_tools_names_none() -> None:
    assert made([], None).refusal(ServerCall("h", "1", "{}")).endswith("may be called: none.")


def test_function_is_mapped_to_chat_request() -> None:
    schema = {"type": "object", "properties": {"a": {}}}
    tool = FunctionTool(
        function("f", description="Does f.", strict=False, parameters=schema, defer_loading=True),
        CreateRequest(model="m"),
    )
    expected = {"name": "f", "parameters": schema, "description": "Does f.", "strict": False}
    assert tool.functions()[0].chat == {"type": "function", "function": expected}


def test_function_without_parameters_gets_empty_schema() -> None:
    expected = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    assert FunctionTool(function("f"), CreateRequest(model="m")).functions()[0].chat == {
        "type": "function",
        "function": expected,
    }


async def test_function_tool_is_asked_once_for_its_functions() -> None:
    request = CreateRequest(model="m", tools=[function("f")])
    tool = Asked(request.tools[0], request)
    toolset = Toolset(request, {"function": lambda *_: tool})
    assembler = Assembler(new_response(request, id="resp_1", created_at=1), toolset.kind_of)
    await toolset.prepare([], ToolExecution(toolset, assembler, EventBuffer(wanted=False), 1, Telemetry()))
    assert [each["function"]["name"] for each in toolset.offer()[0]] == ["f"]
    assert tool.times == 1


def omitting(tools: list[Json], choice: str | Json | None, policy: Policy | dict[HostedTool, Policy]) -> Toolset:
    request = CreateRequest(model="m", tools=tools, tool_choice=choice)
    return Toolset(request, client_tools(), Unavailable(policy))


@pytest.mark.parametrize("policy", ["omit", {"file_search": "omit"}])
async def test_omitted_tool_is_not_offered(policy: Any) -> None:
    toolset = omitting([{"type": "file_search"}, *TOOLS], None, policy)
    assert [each["function"]["name"] for each in toolset.offer()[0]] == ["f", "g"]


@pytest.mark.parametrize("policy", ["refuse", {"web_search": "omit"}, {"file_search": "refuse"}])
def test_unavailable_tool_is_refused_with_name_of_setting(policy: Any) -> None:
    with pytest.raises(ApiError) as caught:
        omitting([*TOOLS, {"type": "file_search"}], None, policy)
    assert (caught.value.status, caught.value.param) == (400, "tools[2].type")
    assert "'unavailable_tools: {file_search: omit}': see docs/guides/tools.md." in caught.value.message


SEARCHES: list[Json] = [{"type": "web_search_preview"}]


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "web_search_preview"},
        {"type": "allowed_tools", "mode": "required", "tools": SEARCHES},
    ],
)
async def test_choice_demanding_omitted_tool_is_refused(choice: Any) -> None:
    with pytest.raises(ApiError, match="'tool_choice' demands a call of a tool") as caught:
        await omitting(SEARCHES, choice, "omit").prepare([], NO_STAGEHAND)
    assert (caught.value.status, caught.value.param) == (400, "tool_choice")


@pytest.mark.parametrize("choice", [None, "auto", {"type": "allowed_tools", "mode": "auto", "tools": SEARCHES}])
async def test_choice_allowing_omitted_tool_is_accepted(choice: Any) -> None:
    toolset = omitting([*SEARCHES, *TOOLS], choice, "omit")
    await toolset.prepare([], NO_STAGEHAND)
    assert len(toolset.offer()[0]) == 2
