"""Generations with programs: hosted calls, mixed with calls of the client, and what the model sees."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import pytest

from llama_stack_responses.features.programs.runtime import ProgramRuntime
from llama_stack_responses.features.programs.tool import ProgramTool
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from llama_stack_responses.requests.request import CreateRequest
from llama_stack_responses.tools.mcp.servers import McpError
from llama_stack_responses.tools.registry import HostedTool
from llama_stack_responses.tools.tool import Tool
from tests.support.inference import Round, finish, text
from tests.support.mcp import FakeMcp, text_result, tool
from tests.unit.tools.tools_harness import ToolsHarness, calls

type Json = dict[str, Any]

PROGRAMS: Final[Json] = {"type": "programmatic_tool_calling"}
SERVER: Final[Json] = {
    "type": "mcp",
    "server_label": "s",
    "server_url": "https://example.com/mcp",
    "require_approval": "never",
    "allowed_callers": ["programmatic"],
}
ASK: Final[Json] = {"type": "function", "name": "ask", "allowed_callers": ["programmatic"]}
TOOLS: Final = [PROGRAMS, SERVER, ASK]
ANSWER: Final[Round] = [text("Done."), finish()]


@pytest.fixture
async def runtime() -> AsyncIterator[ProgramRuntime]:
    """Yield the runtime of a test."""
    pool = WorkerPool(PoolLimits())
    yield ProgramRuntime(pool)
    await pool.close()


class Chain:
    """Responses that continue each other, with the tools of an MCP server.

    Attributes:
        last: the last response.
    """

    last: ToolsHarness

    def __init__(self, runtime: ProgramRuntime, server: FakeMcp) -> None:

        def make(_: Json, __: CreateRequest) -> Tool:
            return ProgramTool(runtime)

        self._services = {"of_features": {"programmatic_tool_calling": HostedTool(make)}, "mcp": server}
        self._history: list[Json] = []

    async def respond(self, *rounds: Round, tools: Sequence[Json] = TOOLS, **fields: Any) -> list[Json]:
        """Create the next response, and return its output without the list of the server's tools."""
        self.last = ToolsHarness(self._services, rounds, history=self._history, tools=list(tools), **fields)
        output: list[Json] = (await self.last.run())["output"]
        self._history = self.last.history
        return [item for item in output if item["type"] != "mcp_list_tools"]

    def seen(self) -> list[str]:
        """Return the results that the model sees."""
        return [each["content"] for each in self.last.inference.requests[-1]["messages"] if each["role"] == "tool"]


def program(code: str) -> Round:
    """Return a round in which the model runs a program."""
    return calls(("run_program", {"code": code}))


def kinds(items: Sequence[Json]) -> list[str]:
    """Return the types of items."""
    return [item["type"] for item in items]


def outputs_of(items: Sequence[Json], *values: str) -> list[Json]:
    """Return the client's outputs of the functions that are called."""
    asked = [item for item in items if item["type"] == "function_call"]
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": value, "caller": item["caller"]}
        for item, value in zip(asked, values, strict=True)
    ]


async def test_program_calls_hosted_tools_within_one_response(runtime: ProgramRuntime) -> None:
    server = FakeMcp(tool("add"), answers={"add": [text_result(str(number)) for number in range(3)]})
    chain = Chain(runtime, server)
    code = """
        const both = await Promise.all([tools.s__add({a: 1}), tools.s__add({a: 2})]);
        return [...both, await tools.s__add({a: both.length})].join();
    """
    output = await chain.respond(program(code), ANSWER)
    assert kinds(output) == ["program", "mcp_call", "mcp_call", "mcp_call", "program_output", "message"]
    assert output[4]["result"] == "0,1,2"
    assert [arguments for _, arguments in server.ran] == [{"a": 1}, {"a": 2}, {"a": 2}]
    assert [*chain.last.offered()] == ["run_program"]
    assert chain.seen() == ["0,1,2"]
    await chain.respond(ANSWER)
    assert chain.seen() == ["0,1,2"]


async def test_program_that_waits_for_the_client_repeats_no_hosted_call(runtime: ProgramRuntime) -> None:
    server = FakeMcp(tool("add"), answers={"add": [text_result("1"), text_result("2")]})
    chain = Chain(runtime, server)
    code = """
        const [asked, added] = await Promise.all([tools.ask({a: 1}), tools.s__add({a: 1})]);
        return [asked, added, await tools.s__add({a: asked}), await tools.ask({a: 2})].join();
    """
    first = await chain.respond(program(code))
    assert kinds(first) == ["program", "function_call", "mcp_call"]
    second = await chain.respond(input=outputs_of(first, "x"))
    assert kinds(second) == ["mcp_call", "function_call"]
    third = await chain.respond(ANSWER, input=outputs_of(second, "y"))
    assert kinds(third) == ["program_output", "message"]
    assert third[0]["result"] == "x,1,2,y"
    assert [arguments for _, arguments in server.ran] == [{"a": 1}, {"a": "x"}]
    assert chain.seen() == ["x,1,2,y"]
    await chain.respond(ANSWER)
    assert chain.seen() == ["x,1,2,y"]


async def test_race_of_hosted_and_client_calls_ends_the_same_way_again(runtime: ProgramRuntime) -> None:
    server = FakeMcp(tool("add"), answers={"add": [text_result("server")]})
    chain = Chain(runtime, server)
    code = "text(await Promise.race([tools.ask({}), tools.s__add({a: 1})])); return await tools.ask({b: 1})"
    first = await chain.respond(program(code))
    assert kinds(first) == ["program", "function_call", "mcp_call", "function_call"]
    second = await chain.respond(ANSWER, input=outputs_of(first, "x", "y"))
    assert second[0]["result"] == "server\ny"


async def test_failed_hosted_call_throws_in_the_program(runtime: ProgramRuntime) -> None:
    gone = McpError({"type": "http_error", "code": 502, "message": "The server is gone."})
    server = FakeMcp(tool("add"), answers={"add": [gone, text_result("no", isError=True)]})
    chain = Chain(runtime, server)
    code = "try { await tools.s__add({}) } catch (error) { text(error.message) } await tools.s__add({})"
    output = await chain.respond(program(code), ANSWER)
    assert output[3] | {"id": ""} == {
        "id": "",
        "type": "program_output",
        "call_id": "c0",
        "result": "The server is gone.\nError: no (line 1)",
        "status": "incomplete",
    }


async def test_program_ends_when_no_more_tools_may_be_called(runtime: ProgramRuntime) -> None:
    server = FakeMcp(tool("add"), answers={"add": [text_result("1")] * 3})
    chain = Chain(runtime, server)
    code = "return (await Promise.all([1, 2, 3].map(a => tools.s__add({a})))).length"
    output = await chain.respond(program(code), ANSWER, max_tool_calls=2)
    assert kinds(output) == ["program", "mcp_call", "program_output", "message"]
    assert output[1]["status"] == "completed"
    assert output[2]["result"] == "Error: No more tools may be called for this response."


async def test_tools_that_need_approval_are_not_for_programs(runtime: ProgramRuntime) -> None:
    chain = Chain(runtime, FakeMcp(tool("add")))
    tools = [PROGRAMS, {**SERVER, "require_approval": "always", "allowed_callers": ["direct", "programmatic"]}]
    output = await chain.respond(program("return await tools.s__add({})"), ANSWER, tools=tools)
    assert "There is no tool" in output[1]["result"]
    assert [*chain.last.offered()] == ["run_program", "s__add"]


async def test_program_without_the_tool_is_not_continued(runtime: ProgramRuntime) -> None:
    chain = Chain(runtime, FakeMcp())
    first = await chain.respond(program("return await tools.ask({})"), tools=[PROGRAMS, ASK])
    output = await chain.respond(ANSWER, tools=[ASK], input=outputs_of(first, "x"))
    assert kinds(output) == ["message"]
    assert chain.seen() == ["(The program was not continued.)"]


async def test_program_of_a_cancelled_response_is_not_continued(runtime: ProgramRuntime) -> None:
    server = FakeMcp(tool("add"), answers={"add": [text_result("1")] * 3})
    code = "await tools.s__add({}).catch(() => 0); await tools.ask({}); await tools.s__add({}).catch(() => 0)"
    first = await Chain(runtime, server).respond(program(code))
    items: list[Json] = [{"type": "message", "role": "user", "content": "hi"}, *first, *outputs_of(first, "x")]
    cut = {**first[1], "id": f"{first[1]['id'][:-1]}0", "status": "incomplete", "output": None}
    ran = len(server.ran)
    chain = Chain(runtime, server)
    output = await chain.respond(ANSWER, input=[*items, cut])
    assert kinds(output) == ["message"]
    assert chain.seen() == ["(The program was not continued.)"]
    assert len(server.ran) == ran
    assert kinds(await Chain(runtime, server).respond(ANSWER, input=items)) == ["mcp_call", "program_output", "message"]


@pytest.mark.parametrize(
    ("position", "change", "why"),
    [
        (1, {"fingerprint": "p1-0-a"}, "did not make the fingerprint"),
        (2, {"arguments": '{"a":2}'}, "are not those that it makes"),
    ],
)
async def test_changed_fingerprint_or_call_ends_the_program(
    runtime: ProgramRuntime, position: int, change: Json, why: str
) -> None:
    tools = [PROGRAMS, ASK]
    first = await Chain(runtime, FakeMcp()).respond(program("return await tools.ask({a: 1})"), tools=tools)
    items = [{"type": "message", "role": "user", "content": "hi"}, *first, *outputs_of(first, "x")]
    items[position] |= change
    output = await Chain(runtime, FakeMcp()).respond(ANSWER, tools=tools, input=items)
    assert why in output[0]["result"]
    assert output[0]["status"] == "incomplete"


async def test_programs_and_direct_calls_of_one_round_are_all_answered(runtime: ProgramRuntime) -> None:
    server = FakeMcp(tool("add"), answers={"add": [text_result("1"), text_result("2")]})
    chain = Chain(runtime, server)
    tools = [PROGRAMS, {**SERVER, "allowed_callers": ["direct", "programmatic"]}, ASK]
    both = calls(
        ("run_program", {"code": "return await tools.ask({a: 1})"}),
        ("run_program", {"code": "return 'second ' + await tools.s__add({a: 1})"}),
        ("s__add", {"a": 2}),
    )
    first = await chain.respond(both, tools=tools)
    assert sorted(kinds(first)) == sorted(
        ["program", "program", "function_call", "mcp_call", "mcp_call", "program_output"]
    )
    second = await chain.respond(ANSWER, tools=tools, input=outputs_of(first, "x"))
    assert kinds(second) == ["program_output", "message"]
    results = chain.seen()
    assert results[0] == "x"
    assert results[1].startswith("second ")
    assert len(results) == 3


async def test_invalid_arguments_throw_without_an_item(runtime: ProgramRuntime) -> None:
    chain = Chain(runtime, FakeMcp())
    code = "const why = await tools.ask(5).catch(error => error.message); return why + await tools.ask({a: 1})"
    first = await chain.respond(program(code), tools=[PROGRAMS, ASK])
    assert kinds(first) == ["program", "function_call"]
    output = await chain.respond(ANSWER, tools=[PROGRAMS, ASK], input=outputs_of(first, " x"))
    assert output[0]["result"] == "The arguments of tools.ask are not valid: an object is expected. x"


PATCH: Final = {"type": "update_file", "path": "a", "diff": "@@"}


async def test_program_calls_every_kind_of_client_tool(runtime: ProgramRuntime) -> None:
    callers = {"allowed_callers": ["programmatic"]}
    tools = [
        PROGRAMS,
        {"type": "custom", "name": "note", **callers},
        {"type": "namespace", "name": "files", "description": "Files.", "tools": [{**ASK, "name": "read"}]},
        {"type": "shell", **callers},
        {"type": "apply_patch", **callers},
    ]
    code = """
        const shell = tools.shell({commands: ["ls"]});
        const patch = tools.apply_patch({type: "update_file", path: "a", diff: "@@"});
        const note = tools.note("text");
        const read = tools.files__read({path: "a"});
        const [[{stdout, outcome}], {status}] = [await shell, await patch];
        return [await note, await read, stdout, outcome.exit_code, status].join();
    """
    chain = Chain(runtime, FakeMcp())
    first = await chain.respond(program(code), tools=tools)
    assert kinds(first) == ["program", "shell_call", "apply_patch_call", "custom_tool_call", "function_call"]
    _, shell, patch, note, read = first
    assert (shell["action"]["commands"], patch["operation"], note["input"]) == (["ls"], PATCH, "text")
    assert (read["namespace"], read["name"], read["arguments"]) == ("files", "read", '{"path":"a"}')
    assert {item["caller"]["caller_id"] for item in first[1:]} == {"c0"}
    ran = {"stdout": "o", "stderr": "", "outcome": {"type": "exit", "exit_code": 3}}
    outputs = [
        {"type": "custom_tool_call_output", "call_id": note["call_id"], "output": "n"},
        {"type": "shell_call_output", "call_id": shell["call_id"], "output": [ran]},
        {"type": "apply_patch_call_output", "call_id": patch["call_id"], "status": "completed"},
        {"type": "function_call_output", "call_id": read["call_id"], "output": [{"type": "input_text", "text": "r"}]},
    ]
    output = await chain.respond(ANSWER, tools=tools, input=outputs)
    assert output[0]["result"] == "n,r,o,3,completed"


async def test_program_calls_a_deferred_tool_after_a_search(runtime: ProgramRuntime) -> None:
    tools = [PROGRAMS, {"type": "tool_search"}, {**ASK, "defer_loading": True, "description": "Asks."}]
    chain = Chain(runtime, FakeMcp())
    search = calls(("tool_search", {"paths": ["ask"]}))
    code = "return await tools.ask({a: 1})"
    output = await chain.respond(program(code), search, program(code), tools=tools)
    assert kinds(output) == [
        "program",
        "program_output",
        "tool_search_call",
        "tool_search_output",
        "program",
        "function_call",
    ]
    assert 'There is no tool "ask"' in output[1]["result"]
    described = [chain.last.offered(number)["run_program"]["description"] for number in range(3)]
    assert ["- ask" in each for each in described] == [False, False, True]
    last = await chain.respond(ANSWER, tools=tools, input=outputs_of(output, "x"))
    assert last[0]["result"] == "x"
