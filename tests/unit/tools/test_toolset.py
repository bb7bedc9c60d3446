"""The calls that are accepted, and the error that the model sees for refused ones."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from llama_stack_responses.concurrency.fair_yield import FairYield
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.generation.held_output import HeldOutput
from llama_stack_responses.generation.tool_execution import ToolExecution
from llama_stack_responses.requests.item_tools import Selection, ToolRoom
from llama_stack_responses.requests.request import CreateRequest
from llama_stack_responses.requests.unavailable_tools import MissingTool, Policy, Unavailable, UnavailableTool
from llama_stack_responses.stream.assembler import Assembler
from llama_stack_responses.stream.call_kinds import FUNCTION, ServerCall
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.telemetry.instrumentation import Telemetry
from llama_stack_responses.tools.client.function import FunctionTool
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.tool import NeedsCheck, NeedsPreparation
from llama_stack_responses.tools.tool_function import Function, Invocation
from llama_stack_responses.tools.toolset import Toolset
from tests.support.reservations import unlimited

Json = dict[str, Any]


def function(name: str, **more: Any) -> Json:
    return {"type": "function", "name": name, "parameters": None, "strict": None, **more}


def allowed(*names: str) -> Json:
    return {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": name} for name in names]}


TOOLS = [function("f"), function("g")]
NO_STAGEHAND: Any = None
"""No tool here emits events during preparation."""


class RecordingTool(FunctionTool):
    """A function tool that counts the calls of `functions`."""

    times = 0

    def functions(self) -> Sequence[Function]:
        self.times += 1
        return super().functions()


def toolset_of(tools: list[Json], choice: str | Json | None, *, parallel: bool = True) -> Toolset:
    request = CreateRequest(model="m", tools=tools, tool_choice=choice, parallel_tool_calls=parallel)
    return Toolset(request, client_tools())


@pytest.mark.parametrize("choice", [None, "auto", "required"])
def test_calls_of_declared_tools_are_accepted(choice: str | Json | None) -> None:
    toolset = toolset_of(TOOLS, choice)
    assert [toolset.kind_of(name) for name in ("f", "g", "f")] == [FUNCTION] * 3


async def test_call_of_unknown_tool_is_refused() -> None:
    toolset = toolset_of(TOOLS, None)
    assert toolset.kind_of("h") is None
    assert toolset.kind_of("") is None
    assert (
        await toolset.refusal(ServerCall("h", "1", "{}"))
        == "There is no tool named 'h'. Tools that may be called: f, g."
    )


async def test_disallowed_tool_is_offered_but_its_call_refused() -> None:
    toolset = toolset_of(TOOLS, allowed("g"))
    assert len(toolset.offer()[0]) == 2
    assert toolset.kind_of("f") is None
    assert toolset.kind_of("g") is FUNCTION
    refusal = await toolset.refusal(ServerCall("f", "1", "{}"))
    assert refusal == "The tool 'f' cannot be called in this turn. Tools that may be called: g."


def test_required_call_of_allowed_tools_offers_only_those() -> None:
    toolset = toolset_of(TOOLS, allowed("g") | {"mode": "required"})
    seen, choice = toolset.offer()
    assert ([each["function"]["name"] for each in seen], choice) == (["g"], "required")


@pytest.mark.parametrize(("choice", "goes"), [("none", []), ({"type": "function", "name": "g"}, ["g"])])
def test_tool_choice_is_enforced_on_calls(choice: str | Json, goes: list[str]) -> None:
    toolset = toolset_of(TOOLS, choice)
    assert [name for name in ("f", "g") if toolset.kind_of(name)] == goes


def test_tool_chosen_by_name_is_accepted_once() -> None:
    toolset = toolset_of(TOOLS, {"type": "function", "name": "g"})
    assert toolset.kind_of("g") is FUNCTION
    assert toolset.kind_of("g") is None


def test_only_one_call_is_accepted_if_not_parallel() -> None:
    toolset = toolset_of(TOOLS, None, parallel=False)
    assert toolset.kind_of("h") is None
    assert toolset.kind_of("g") is FUNCTION
    assert toolset.kind_of("f") is None


async def test_refusal_without_tools_names_none() -> None:
    assert (await toolset_of([], None).refusal(ServerCall("h", "1", "{}"))).endswith("may be called: none.")


async def test_refusal_names_first_of_many_tools() -> None:
    toolset = toolset_of([function(f"f{number:04}") for number in range(1_000)], None)
    refusal = await toolset.refusal(ServerCall("h", "1", "{}"))
    assert refusal.endswith("f0048, f0049, and 950 more.")
    assert len(refusal) < 500


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


async def test_functions_of_a_function_tool_are_built_once() -> None:
    request = CreateRequest(model="m", tools=[function("f")])
    tool = RecordingTool(request.tools[0], request)
    toolset = Toolset(request, {"function": lambda *_: tool})
    assembler = Assembler(new_response(request, id="resp_1", created_at=1), toolset.kind_of)
    buffer, held = EventBuffer(wanted=False), HeldOutput(unlimited())
    await toolset.prepare([], ToolExecution(toolset, assembler, buffer, 1, Telemetry(), held, FairYield()))
    assert [each["function"]["name"] for each in toolset.offer()[0]] == ["f"]
    assert tool.times == 1


def omitting(tools: list[Json], choice: str | Json | None, policy: Policy | dict[str, Policy]) -> Toolset:
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


class UnavailableFunctionTool(FunctionTool, NeedsPreparation, NeedsCheck):
    """A tool that turns out to be unavailable when it is prepared, or when its service is checked."""

    async def prepare(self, *_: Any) -> None:
        await self.check()

    async def check(self) -> None:
        raise MissingTool("web_search")


@pytest.mark.parametrize("found_by", ["prepare", "check"])
async def test_refusal_of_declared_tool_names_its_place_whenever_it_is_found(found_by: str) -> None:
    request = CreateRequest(model="m", tools=[function("f"), {"type": "web_search", "name": "w"}])
    toolset = Toolset(request, {**client_tools(), "web_search": UnavailableFunctionTool})
    with pytest.raises(ApiError, match="This stack has no provider for tools of the type 'web_search'") as caught:
        await (toolset.prepare([], NO_STAGEHAND) if found_by == "prepare" else toolset.check())
    assert caught.value.param == "tools[1].type"


@pytest.mark.parametrize("choice", [None, "auto", {"type": "web_search"}, "required"])
async def test_tool_that_is_left_out_is_refused_only_where_the_choice_names_it(
    choice: Any, caplog: pytest.LogCaptureFixture
) -> None:
    unavailable = Unavailable("omit")
    request = CreateRequest(model="m", tools=[{"type": "web_search"}, *TOOLS], tool_choice=choice)
    toolset = Toolset(request, client_tools(), unavailable)
    assert list(toolset.omitted) == ["web_search"]
    if isinstance(choice, dict):
        with pytest.raises(ApiError, match="none of the allowed tools: this stack lacks them") as caught:
            await toolset.prepare([], NO_STAGEHAND)
        assert (caught.value.status, caught.value.param) == (400, "tool_choice")
    else:
        await toolset.prepare([], NO_STAGEHAND)
        assert [each["function"]["name"] for each in toolset.offer()[0]] == ["f", "g"]
    Toolset(request, client_tools(), unavailable)
    assert caplog.messages == ["omitted a tool of requests that this stack has not: type web_search"]


@pytest.mark.parametrize(("optional", "policy"), [(False, "omit"), (True, "refuse")])
async def test_tool_that_turns_out_to_be_missing_is_left_out(optional: bool, policy: Any) -> None:
    class MissingFunctionTool(UnavailableFunctionTool):
        async def check(self) -> None:
            raise MissingTool("web_search", optional=optional)

    request = CreateRequest(model="m", tools=[function("f"), {"type": "web_search", "name": "w"}])
    makers = {**client_tools(), "web_search": MissingFunctionTool}
    toolset = Toolset(request, makers, Unavailable(policy))
    await toolset.check()
    await toolset.prepare([], NO_STAGEHAND)
    assert [each["function"]["name"] for each in toolset.offer()[0]] == ["f"]
    assert list(toolset.omitted) == ["web_search"]


async def test_tool_with_a_value_that_the_stack_cannot_serve_is_refused_with_any_policy() -> None:
    class LimitedFunctionTool(UnavailableFunctionTool):
        async def check(self) -> None:
            raise UnavailableTool("This stack has other models.", "model")

    request = CreateRequest(model="m", tools=[{"type": "web_search", "name": "w"}])
    toolset = Toolset(request, {"web_search": LimitedFunctionTool}, Unavailable("omit"))
    with pytest.raises(ApiError, match="This stack has other models") as caught:
        await toolset.prepare([], NO_STAGEHAND)
    assert caught.value.param == "tools[0].model"


async def test_unavailable_tools_of_earlier_items_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "llama_stack_responses")
    toolset = Toolset(
        CreateRequest(model="m", tools=[function("f")]), {**client_tools(), "web_search": UnavailableFunctionTool}
    )
    await toolset.prepare(
        [additional({"type": "web_search", "name": "w"}, {"type": "file_search"}, *TOOLS)], NO_STAGEHAND
    )
    assert [each["function"]["name"] for each in toolset.offer()[0]] == ["f", "g"]
    line = "omitted an unavailable tool of the conversation: type "
    assert caplog.messages == [f"{line}file_search", f"{line}web_search"]


@pytest.mark.parametrize("kind", ["file_search", "web_search"])
async def test_unavailable_tools_of_new_items_are_refused(kind: str) -> None:
    items = [{"type": "message"}, additional(function("f"), {"type": kind, "name": "w"})]
    toolset = Toolset(
        CreateRequest(model="m", input_items=items), {**client_tools(), "web_search": UnavailableFunctionTool}
    )
    with pytest.raises(ApiError, match="This stack has no provider for tools of the type") as caught:
        await toolset.prepare(items, NO_STAGEHAND)
    assert caught.value.param == "input[1].tools[1].type"


@pytest.mark.parametrize("large", [False, True])
async def test_only_large_arguments_are_read_outside_event_loop(monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    in_loop: list[bool] = []

    def read(arguments: str) -> Json:
        in_loop.append(threading.current_thread() is threading.main_thread())
        return {"length": len(arguments)}

    class Searching(FunctionTool):
        def functions(self) -> Sequence[Function]:
            return [replace(each, kind=replace(each.kind, whole=read)) for each in super().functions()]

    toolset = Toolset(CreateRequest(model="m", tools=[function("f")]), {"function": Searching})
    monkeypatch.setattr("llama_stack_responses.tools.tool_function.decoded_arguments", read)
    call = ServerCall("f", "1", "x" * (40_000 if large else 10))
    assert await toolset.argument_error(call) is None
    assert await Invocation(call, {}, NO_STAGEHAND).arguments() == {"length": len(call.arguments)}
    assert in_loop == [not large] * 2


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
    with pytest.raises(ApiError, match="'tool_choice' requires a call of a tool") as caught:
        await omitting(SEARCHES, choice, "omit").prepare([], NO_STAGEHAND)
    assert (caught.value.status, caught.value.param) == (400, "tool_choice")


@pytest.mark.parametrize("choice", [None, "auto", {"type": "allowed_tools", "mode": "auto", "tools": SEARCHES}])
async def test_choice_allowing_omitted_tool_is_accepted(choice: Any) -> None:
    toolset = omitting([*SEARCHES, *TOOLS], choice, "omit")
    await toolset.prepare([], NO_STAGEHAND)
    assert len(toolset.offer()[0]) == 2


@pytest.mark.parametrize(("name", "called"), [("a.b", "n__a_b"), ("a_b", "n__a_b_2")])
def test_choice_distinguishes_names_of_namespace_that_are_one_for_the_model(name: str, called: str) -> None:
    space = {"type": "namespace", "name": "n", "description": "", "tools": [function("a.b"), function("a_b")]}
    toolset = toolset_of([space], allowed(name))
    assert toolset.names[("n", name)] == called
    assert [each for each in ("n__a_b", "n__a_b_2") if toolset.kind_of(each)] == [called]


class CountingFunctionTool(FunctionTool):
    """A function tool that counts the calls of `chosen`, of all such tools."""

    times = 0

    def chosen(self, choice: Json) -> Collection[str]:
        CountingFunctionTool.times += 1
        return super().chosen(choice)


def test_each_allowed_tool_is_compared_with_tools_of_its_name_only() -> None:
    names = [f"f{number}" for number in range(100)]
    request = CreateRequest(model="m", tools=[*map(function, names)], tool_choice=allowed(*names[10:], *names[10:]))
    CountingFunctionTool.times = 0
    toolset = Toolset(request, {"function": CountingFunctionTool})
    assert CountingFunctionTool.times == 90
    assert (toolset.kind_of("f9"), toolset.kind_of("f10")) == (None, FUNCTION)


SEARCH: Json = {"type": "tool_search"}


def additional(*tools: Json) -> Json:
    return {"type": "additional_tools", "tools": list(tools)}


def client_search(description: str) -> Json:
    return {"type": "tool_search", "execution": "client", "description": description}


def offered(toolset: Toolset) -> list[str]:
    return [each["function"].get("description") or each["function"]["name"] for each in toolset.offer()[0]]


async def test_newest_tool_search_of_items_counts() -> None:
    toolset = toolset_of([], None)
    await toolset.prepare([additional(client_search("old")), additional(client_search("new"))], NO_STAGEHAND)
    assert offered(toolset) == ["new"]


async def test_declared_tool_search_comes_before_those_of_items() -> None:
    toolset = toolset_of([client_search("declared")], None)
    await toolset.prepare([additional(client_search("new"))], NO_STAGEHAND)
    assert offered(toolset) == ["declared"]


async def test_additional_tool_replaces_a_declared_one_at_its_place() -> None:
    toolset = toolset_of([function("f", description="old"), function("g")], None)
    again = [additional(function("f", description=text)) for text in ("newer", "newest")]
    await toolset.prepare([*again, additional(function("h"))], NO_STAGEHAND)
    assert offered(toolset) == ["newest", "g", "h"]
    custom = {"type": "custom", "name": "g"}
    await toolset.prepare([*again, additional(function("h", description="new"), custom)], NO_STAGEHAND)
    first, second, third = toolset.offer()[0]
    assert (first["function"]["description"], second["type"], third["function"]["description"]) == (
        "newest",
        "custom",
        "new",
    )


async def test_additional_tool_replaces_one_of_a_namespace() -> None:
    space = {"type": "namespace", "name": "n", "description": "", "tools": [function("f"), function("g")]}
    toolset = toolset_of([function("f", description="own"), space], None)
    again = {**space, "tools": [function("f", description="new")]}
    await toolset.prepare([additional(again)], NO_STAGEHAND)
    assert offered(toolset) == ["own", "new", "n__g"]


async def test_found_tool_does_not_replace_a_declared_one() -> None:
    toolset = toolset_of([function("f", description="declared")], None)
    found = {"type": "tool_search_output", "tools": [function("f", description="found")]}
    await toolset.prepare([found], NO_STAGEHAND)
    assert offered(toolset) == ["declared"]


async def test_many_tools_of_items_are_selected_in_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    select = ToolRoom.select

    def selecting(*args: Any) -> Selection:
        threads.add(threading.get_ident())
        return select(*args)

    monkeypatch.setattr(ToolRoom, "select", selecting)
    items = [additional(*(function(f"f{number}") for number in range(1_000)))] * 5
    await toolset_of([], None).prepare(items, NO_STAGEHAND)
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_newest_unnamed_tools_of_items_count() -> None:
    made_of: list[str] = []

    def make(entry: Json, request: CreateRequest) -> FunctionTool:
        made_of.append(entry["description"])
        return FunctionTool(function(entry["description"]), request)

    toolset = Toolset(CreateRequest(model="m"), {"web_search": make})
    items = [additional({"type": "web_search", "description": f"w{number}"}) for number in range(20)]
    # The oldest is named again in the newest item, so it is among the newest.
    await toolset.prepare([*items, items[0]], NO_STAGEHAND)
    assert made_of == ["w0", *(f"w{number}" for number in range(5, 20))]


async def test_tool_in_many_items_is_built_once() -> None:
    made_of: list[str] = []

    def make(entry: Json, request: CreateRequest) -> FunctionTool:
        made_of.append(entry["name"])
        return FunctionTool(entry, request)

    request = CreateRequest(model="m", tools=[function("f", defer_loading=True), SEARCH])
    toolset = Toolset(request, {**client_tools(), "function": make})
    found = {"type": "additional_tools", "tools": [*request.tools, function("g")]}
    await toolset.prepare([found, {**found, "tools": [function("g", description="again")]}] * 50, NO_STAGEHAND)
    assert made_of == ["f", "g"]
    offered = {each["function"]["name"]: each["function"] for each in toolset.offer()[0]}
    assert {"f", "g"} <= offered.keys()
    assert offered["g"]["description"] == "again"


async def test_parts_of_declared_namespace_do_not_count_again() -> None:
    members = [function(f"f{number}", defer_loading=True) for number in range(4)]
    space = {"type": "namespace", "name": "n", "description": "", "tools": members}
    request = CreateRequest(model="m", tools=[space, SEARCH])
    toolset = Toolset(request, client_tools(), max_tools=6)
    found = [{"type": "additional_tools", "tools": [{**space, "tools": members[at : at + 2]}]} for at in range(3)]
    more = {"type": "additional_tools", "tools": [{**space, "tools": [function("new"), members[0]]}]}
    await toolset.prepare([*found, more], NO_STAGEHAND)
    names = [each["function"]["name"] for each in toolset.offer()[0]]
    assert sorted(names) == ["n__f0", "n__f1", "n__f2", "n__f3", "n__new", "tool_search"]
    beyond = {"type": "additional_tools", "tools": [{**space, "tools": [function("a"), function("b")]}]}
    await toolset.prepare([beyond], NO_STAGEHAND)
    assert len(toolset.offer()[0]) == 6


async def test_newest_named_tools_of_items_count() -> None:
    toolset = Toolset(CreateRequest(model="m", tools=[function("declared")]), client_tools(), max_tools=3)
    await toolset.prepare([additional(function(name)) for name in ("a", "b", "c", "a")], NO_STAGEHAND)
    assert offered(toolset) == ["declared", "a", "c"]
