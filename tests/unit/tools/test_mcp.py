"""Generations with MCP servers: lists, calls, approvals and failures, as seen by the client and the model."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import pytest

from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.exchanges import with_exchanges
from llama_stack_responses.generation.loop import GenerationLimits
from llama_stack_responses.requests.request import CreateRequest
from llama_stack_responses.stream.replay import replay
from llama_stack_responses.stream.transcript import Transcript
from llama_stack_responses.tools.mcp.list_budget import ServerBounds
from llama_stack_responses.tools.mcp.servers import McpError
from llama_stack_responses.tools.mcp.tool import McpTool
from tests.support.generation_harness import COMPLETED, GenerationHarness
from tests.support.inference import Round, call, finish, text
from tests.support.mcp import Answer, FakeMcp, text_result, tool
from tests.support.strict import check_stream
from tests.support.waiting import until

Json = dict[str, Any]

SERVER: Final[Json] = {
    "type": "mcp",
    "server_label": "s",
    "server_url": "https://example.com/mcp",
    "require_approval": "never",
}
ASKING: Final[Json] = {**SERVER, "require_approval": "always"}
ADD: Final = call("s__add", "1", '{"a": 1}')
CALLS: Final[Round] = [ADD, finish("tool_calls")]
ANSWER: Final[Round] = [text("It is 42."), finish()]
GONE: Final = McpError({"type": "http_error", "code": 502, "message": "The server could not be reached."})


def harness(*rounds: Round, server: FakeMcp, tools: list[Json] | None = None, **fields: Any) -> GenerationHarness:
    return GenerationHarness(*rounds, makers={"mcp": server.make}, tools=tools or [SERVER], **fields)


def items_of(events: list[Json]) -> list[Json]:
    output: list[Json] = check_stream(events)["output"]
    return output


def stages(events: list[Json], index: int) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events if event.get("output_index") == index]


def approved(request: Json, *, approve: bool = True, **more: Any) -> Json:
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve, **more}


def names(harness_: GenerationHarness, request: int = -1) -> list[str]:
    """Return the names of the functions that the model received."""
    return [each["function"]["name"] for each in harness_.inference.requests[request].get("tools", [])]


# Lists


async def test_tools_of_server_are_listed_and_called() -> None:
    server = FakeMcp(
        tool("add", description="Adds."), tool("see", read_only=True), answers={"add": [text_result("42")]}
    )
    generation = harness(CALLS, ANSWER, server=server)
    events = await generation.end()
    tools, added, _ = items_of(events)
    assert [(each["name"], each["description"], each["annotations"]) for each in tools["tools"]] == [
        ("add", "Adds.", None),
        ("see", None, {"readOnlyHint": True}),
    ]
    assert stages(events, 0) == [
        "output_item.added",
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "output_item.done",
    ]
    assert stages(events, 1) == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
    ]
    assert {**added, "id": ""} == {
        "id": "",
        "type": "mcp_call",
        "status": "completed",
        "server_label": "s",
        "name": "add",
        "arguments": '{"a": 1}',
        "output": "42",
        "error": None,
        "approval_request_id": None,
    }
    assert (names(generation), generation.tool_outputs(), server.ran) == (
        ["s__add", "s__see"],
        ["42"],
        [("add", {"a": 1})],
    )
    assert server.open == 0


async def test_mcp_events_are_replayed_exactly() -> None:
    server = FakeMcp(tool("add"), answers={"add": [text_result("42"), GONE]})
    generation = harness(CALLS, CALLS, ANSWER, server=server)
    events = await generation.end()
    transcript = Transcript()
    transcript.note(events)
    assert list(replay(events[-1]["response"], transcript.marks())) == events
    check_stream(list(replay(events[-1]["response"])))


@pytest.mark.parametrize("again", [True, False])
async def test_tool_list_in_conversation_is_reused(again: bool) -> None:
    server = FakeMcp(tool("add"))
    [tools, _] = items_of(await harness(ANSWER, server=server).end())
    more = {**SERVER, "allowed_tools": ["add", "new"]}
    generation = harness(ANSWER, server=server, history=[tools], tools=[more if again else SERVER])
    assert [item["type"] for item in items_of(await generation.end())] == ["mcp_list_tools"] * again + ["message"]
    assert (names(generation), server.listed) == (["s__add"], 1 + again)


def listed(label: str, count: int) -> Json:
    tools = [{"name": f"t{number}", "input_schema": {}} for number in range(count)]
    return {"type": "mcp_list_tools", "id": f"mcpl_{label}", "server_label": label, "tools": tools}


async def test_lists_in_conversation_count_as_far_as_there_is_room() -> None:
    servers = [{**SERVER, "server_label": label} for label in ("a", "b")]
    items = [{"type": "additional_tools", "role": "developer", "tools": [server]} for server in servers]
    history = [*items, listed("s", 1_000), listed("a", 48), listed("b", 1_001)]
    allowed = {**SERVER, "allowed_tools": [f"t{number}" for number in range(1_000)]}
    generation = harness(ANSWER, server=FakeMcp(), history=history, tools=[allowed])
    await generation.end()
    offered = Counter(name.partition("__")[0] for name in names(generation))
    assert offered == {"s": 1_000, "a": 47, "b": 1_001}


async def test_too_many_listed_tools_in_new_input_are_refused() -> None:
    server = FakeMcp(tool("add"))
    fits = harness(ANSWER, server=server, input=[listed("s", 2_048), listed("other", 2_048)])
    await fits.end()
    assert len(names(fits)) == 2_048
    with pytest.raises(ApiError, match="a response can have 2048 tools of MCP servers") as caught:
        harness(ANSWER, server=server, input=[listed("s", 2_049)])
    assert (caught.value.status, caught.value.param) == (400, "input")


async def test_list_of_other_server_or_failed_list_is_not_reused() -> None:
    empty: Json = {"type": "mcp_list_tools", "id": "mcpl_1", "tools": []}
    history = [{**empty, "server_label": "t"}, {**empty, "server_label": "s", "error": "no"}]
    generation = harness(ANSWER, server=FakeMcp(tool("add")), history=history)
    await generation.end()
    assert names(generation) == ["s__add"]


async def test_failed_tool_list_fails_response() -> None:
    generation = harness(ANSWER, server=FakeMcp(GONE))
    with pytest.raises(ApiError) as caught:
        await generation.generation.run()
    assert (caught.value.status, caught.value.type) == (424, "external_connector_error")
    assert caught.value.message == ("Error retrieving tool list from MCP server: 's'. The server could not be reached.")
    generation.event_buffer.put(generation.assembler.close("incomplete"))
    generation.assembler.set_outcome("failed", error=caught.value)
    generation.event_buffer.put(generation.assembler.end())
    events = generation.event_buffer.ready()
    [tools] = items_of(events)
    assert (tools["tools"], tools["error"]) == ([], "The server could not be reached.")
    assert stages(events, 0)[-2:] == ["mcp_list_tools.failed", "output_item.done"]
    assert (generation.generation.accepted.done(), generation.inference.requests) == (True, [])


async def test_servers_are_listed_concurrently_and_cancelled_on_failure() -> None:
    slow, gone = FakeMcp(asyncio.Event()), FakeMcp(GONE)

    def make(declared: Json, request: CreateRequest) -> McpTool:
        return (slow if declared["server_label"] == "s" else gone).make(declared, request)

    generation = GenerationHarness(ANSWER, makers={"mcp": make}, tools=[SERVER, {**SERVER, "server_label": "t"}])
    with pytest.raises(ApiError, match="MCP server: 't'") as caught:
        await generation.generation.run()
    generation.event_buffer.put(generation.assembler.close("incomplete"))
    generation.assembler.set_outcome("failed", error=caught.value)
    generation.event_buffer.put(generation.assembler.end())
    errors = {item["server_label"]: item["error"] for item in items_of(generation.event_buffer.ready())}
    assert errors == {
        "s": "The connection ended before the server's answer was complete.",
        "t": "The server could not be reached.",
    }
    assert (slow.open, gone.open) == (0, 0)


async def test_lists_of_all_servers_are_bounded_together() -> None:
    large = FakeMcp(*(tool(f"t{number}", description="x" * 1_000) for number in range(10)))
    servers = [{**SERVER, "server_label": label} for label in "abc"]
    generation = harness(ANSWER, server=large, tools=servers, limits=limits(list_bytes=40_000))
    assert await generation.generation.run() == COMPLETED
    generation = harness(ANSWER, server=large, tools=servers, limits=limits(list_bytes=20_000))
    with pytest.raises(ApiError, match="list more tools together") as caught:
        await generation.generation.run()
    assert (caught.value.status, caught.value.param) == (424, "tools")


async def test_number_of_tools_of_all_servers_is_bounded() -> None:
    many = FakeMcp(*(tool(f"t{number}") for number in range(1_100)))
    with pytest.raises(ApiError, match="list more tools together"):
        await harness(ANSWER, server=many, tools=[SERVER, {**SERVER, "server_label": "t"}]).generation.run()


async def test_few_servers_are_listed_at_the_same_time() -> None:
    opened = asyncio.Event()
    slow = FakeMcp(opened)
    generation = harness(ANSWER, server=slow, tools=[{**SERVER, "server_label": f"s{number}"} for number in range(20)])
    running = asyncio.create_task(generation.generation.run())
    await until(lambda: slow.listed > 0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert slow.listed == 4
    opened.set()
    assert await running == COMPLETED
    assert slow.listed == 20


@pytest.mark.parametrize(("most", "listed"), [(4, ["s", "s0", "s1", "s2"]), (3, ["s", "s1", "s2"])])
async def test_newest_servers_of_items_count(most: int, listed: list[str]) -> None:
    carried = [{**SERVER, "server_label": f"s{number}"} for number in range(3)]
    items = [{"type": "additional_tools", "role": "developer", "tools": [server]} for server in carried]
    made = harness(ANSWER, server=FakeMcp(tool("add")), history=items, limits=limits(servers=most))
    lists = [item for item in items_of(await made.end()) if item["type"] == "mcp_list_tools"]
    assert sorted(item["server_label"] for item in lists) == listed


def limits(servers: int = 32, list_bytes: int = 2**20) -> GenerationLimits:
    return GenerationLimits(8, 60.0, 60.0, servers=ServerBounds(servers, list_bytes))


TOOLS: Final = (tool("add"), tool("see", read_only=True), tool("del"))


@pytest.mark.parametrize(
    ("allowed", "seen"),
    [
        (None, ["add", "see", "del"]),
        ([], []),
        (["add", "none"], ["add"]),
        ({}, ["add", "see", "del"]),
        ({"read_only": True}, ["see"]),
        ({"read_only": False}, ["add", "del"]),
        ({"tool_names": ["see", "del"]}, ["see", "del"]),
        ({"tool_names": ["see", "del"], "read_only": False}, ["del"]),
    ],
)
async def test_allowed_tools_filter_list(allowed: Any, seen: list[str]) -> None:
    generation = harness(ANSWER, server=FakeMcp(*TOOLS), tools=[{**SERVER, "allowed_tools": allowed}])
    tools, _ = items_of(await generation.end())
    assert [each["name"] for each in tools["tools"]] == seen
    assert names(generation) == [f"s__{name}" for name in seen]


# Approvals


@pytest.mark.parametrize(
    ("required", "expected"),
    [
        (None, ["add", "see", "del"]),
        ("always", ["add", "see", "del"]),
        ("never", []),
        ({}, ["add", "see", "del"]),
        ({"never": {"tool_names": ["add"]}}, ["see", "del"]),
        ({"never": {"read_only": True}}, ["add", "del"]),
        ({"never": {}}, ["add", "see", "del"]),
        ({"always": {"tool_names": ["add"]}}, ["add", "see", "del"]),
        ({"never": {"tool_names": ["add", "see"]}, "always": {"tool_names": ["add"]}}, ["add", "del"]),
    ],
)
async def test_require_approval_selects_calls_to_ask_for(required: Any, expected: list[str]) -> None:
    found = []
    for name in ("add", "see", "del"):
        server = FakeMcp(*TOOLS, answers={name: [text_result("")]})
        rounds: list[Round] = [[call(f"s__{name}", "1"), finish("tool_calls")], ANSWER]
        output = items_of(await harness(*rounds, server=server, tools=[{**SERVER, "require_approval": required}]).end())
        found += [name] if output[1]["type"] == "mcp_approval_request" else []
    assert found == expected


async def test_approved_call_runs_before_model_continues() -> None:
    server = FakeMcp(tool("add"), answers={"add": [text_result("42")]})
    first = harness(CALLS, server=server, tools=[ASKING])
    events = await first.end()
    tools, request = items_of(events)
    assert {**request, "id": ""} == {
        "id": "",
        "type": "mcp_approval_request",
        "server_label": "s",
        "name": "add",
        "arguments": '{"a": 1}',
    }
    assert stages(events, 1) == ["output_item.added", "output_item.done"]
    assert (server.ran, len(first.inference.requests)) == ([], 1)

    second = harness(ANSWER, server=server, tools=[ASKING], history=[tools, request], input=[approved(request)])
    added, _ = items_of(await second.end())
    assert (added["type"], added["approval_request_id"], added["output"]) == ("mcp_call", request["id"], "42")
    messages = second.inference.requests[0]["messages"]
    assert [message["role"] for message in messages] == ["assistant", "tool"]
    assert messages[0]["tool_calls"][0]["function"] == {"name": "s__add", "arguments": '{"a": 1}'}
    assert second.tool_outputs() == ["42"]

    history = [tools, request, approved(request), *with_exchanges([added], second.generation.exchanges)]
    third = harness(ANSWER, server=server, tools=[ASKING], history=history)
    await third.end()
    assert (third.tool_outputs(), server.ran, server.listed) == (["42"], [("add", {"a": 1})], 1)


async def test_denial_is_sent_to_model_as_result() -> None:
    server = FakeMcp(tool("add"))
    tools, request = items_of(await harness(CALLS, server=server, tools=[ASKING]).end())
    denial = approved(request, approve=False, reason="Not today.")
    generation = harness(ANSWER, server=server, tools=[ASKING], history=[tools, request], input=[denial])
    assert [item["type"] for item in items_of(await generation.end())] == ["message"]
    assert generation.tool_outputs() == [
        "The user did not approve this call, so it was not made. The reason given: Not today."
    ]
    assert server.ran == []


async def test_approved_call_runs_once_although_an_item_repeats_its_server() -> None:
    server = FakeMcp(tool("add"), answers={"add": [text_result("42"), text_result("again")]})
    history = items_of(await harness(CALLS, server=server, tools=[ASKING]).end())
    repeated = {"type": "additional_tools", "role": "developer", "tools": [{**ASKING, "server_description": "Adds."}]}
    fields: Json = {"history": [repeated, *history], "input": [approved(history[-1])]}
    await harness(ANSWER, server=server, tools=[ASKING], **fields).end()
    assert server.ran == [("add", {"a": 1})]


async def test_approvals_denials_and_client_outputs_work_in_one_turn() -> None:
    server = FakeMcp(tool("add"), answers={"add": [text_result("42")]})
    tools = [ASKING, {"type": "function", "name": "f"}]
    calls: Round = [ADD, call("s__add", "2", '{"a": 2}', index=1), call("f", "3", index=2), finish("tool_calls")]
    history = items_of(await harness(calls, server=server, tools=tools).end())
    first, second = [item for item in history if item["type"] == "mcp_approval_request"]
    [function] = [item for item in history if item["type"] == "function_call"]
    answers = [
        approved(second, approve=False),
        {"type": "function_call_output", "call_id": function["call_id"], "output": "f said"},
        approved(first),
    ]
    generation = harness(ANSWER, server=server, tools=tools, history=history, input=answers)
    assert [item["type"] for item in items_of(await generation.end())] == ["mcp_call", "message"]
    outputs = generation.tool_outputs()
    assert (sorted(outputs)[0], outputs[-1], server.ran) == ("42", "42", [("add", {"a": 1})])
    assert {"f said", "The user did not approve this call, so it was not made."} < set(outputs)


async def test_invalid_arguments_are_not_shown_for_approval() -> None:
    server = FakeMcp(tool("add"))
    generation = harness([call("s__add", "1", "[1]"), finish("tool_calls")], ANSWER, server=server, tools=[ASKING])
    assert [item["type"] for item in items_of(await generation.end())] == ["mcp_list_tools", "message"]
    assert "The arguments of this call are not valid for 's__add'." in generation.tool_outputs()[0]


async def test_approved_tool_missing_on_server_is_refused() -> None:
    server = FakeMcp(tool("see"))
    request = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "add", "arguments": "{}"}
    generation = harness(ANSWER, server=server, history=[request], input=[approved(request)])
    with pytest.raises(ApiError, match="The MCP server 's' does not have the approved tool 'add'"):
        await generation.generation.run()


async def test_approved_call_is_step_before_it_runs() -> None:
    server = FakeMcp(tool("add"), answers={"add": [text_result("42")]})
    tools, request = items_of(await harness(CALLS, server=server, tools=[ASKING]).end())
    generation = harness(ANSWER, server=server, tools=[ASKING], history=[tools, request], input=[approved(request)])
    await generation.end()
    assert [(len(step.waiting), len(step.new_items)) for step in generation.steps] == [(1, 1), (0, 2)]


# Calls


@pytest.mark.parametrize(
    ("answer", "error", "expected"),
    [
        (GONE, GONE.error, "The server could not be reached."),
        (
            McpError({"type": "mcp_protocol_error", "code": -32602, "message": "No such tool."}),
            {"type": "mcp_protocol_error", "code": -32602, "message": "No such tool."},
            "No such tool.",
        ),
        (
            text_result("It broke.", isError=True),
            {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "It broke."}]},
            "It broke.",
        ),
    ],
)
async def test_failed_call_has_error_in_item_and_for_model(answer: Json | McpError, error: Json, expected: str) -> None:
    generation = harness(CALLS, ANSWER, server=FakeMcp(tool("add"), answers={"add": [answer]}))
    events = await generation.end()
    added = items_of(events)[1]
    assert (added["status"], added["output"], added["error"]) == ("failed", None, error)
    assert stages(events, 1)[-2:] == ["mcp_call.failed", "output_item.done"]
    assert generation.tool_outputs() == [expected]


async def test_arguments_that_are_no_object_fail_call() -> None:
    generation = harness([call("s__add", "1", "[1]"), finish("tool_calls")], ANSWER, server=FakeMcp(tool("add")))
    added = items_of(await generation.end())[1]
    assert (added["status"], added["error"]["type"], added["error"]["code"]) == ("failed", "mcp_protocol_error", -32602)
    assert "not a JSON object" in generation.tool_outputs()[0]


async def test_slow_call_times_out() -> None:
    server = FakeMcp(tool("add"), answers={"add": [asyncio.Event()]})
    generation = harness(CALLS, ANSWER, server=server, limits=GenerationLimits(8, 30.0, 0.01))
    added = items_of(await generation.end())[1]
    assert (added["status"], added["error"]["message"]) == ("failed", "The tool did not answer within 0.01 seconds.")


PICTURE: Final = {"type": "image", "mimeType": "image/png", "data": "aGk="}
SEEN: Final = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


@pytest.mark.parametrize(
    ("result", "output"),
    [
        ({"content": [], "structuredContent": {"a": 1}}, '{"a":1}'),
        (text_result("one", structuredContent={"a": 1}), "one"),
        ({"content": [*text_result("one")["content"], *text_result("two")["content"]]}, "one\ntwo"),
        ({"content": [{"type": "resource", "resource": {"uri": "f://a", "text": "body"}}]}, "body"),
        (
            {"content": [{"type": "resource", "resource": {"uri": "f://a", "blob": "aGk="}}]},
            "(application/octet-stream at f://a)",
        ),
        ({"content": [{"type": "resource_link", "uri": "f://a", "name": "A"}]}, "A: f://a"),
        ({"content": [{"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}]}, "(content of the type 'audio')"),
        ({"content": [{"type": "image", "data": "aGk=", "mimeType": "text/html"}]}, "(text/html)"),
        ({"content": []}, ""),
    ],
)
async def test_results_become_text_output(result: Json, output: str) -> None:
    generation = harness(CALLS, ANSWER, server=FakeMcp(tool("add"), answers={"add": [result]}))
    assert items_of(await generation.end())[1]["output"] == output
    assert generation.tool_outputs() == [output]


@pytest.mark.parametrize(
    "content", [PICTURE, {"type": "resource", "resource": {"uri": "f://a", "mimeType": "image/png", "blob": "aGk="}}]
)
async def test_model_receives_images_of_result(content: Json) -> None:
    result = {"content": [{"type": "text", "text": "Look:"}, content]}
    generation = harness(CALLS, ANSWER, server=FakeMcp(tool("add"), answers={"add": [result]}))
    assert items_of(await generation.end())[1]["output"] == "Look:\n(an image)"
    assert generation.inference.requests[1]["messages"][-1] == {"role": "user", "content": [SEEN]}


async def test_model_without_image_support_gets_note_about_image() -> None:
    server = FakeMcp(tool("add"), answers={"add": [{"content": [PICTURE]}]})
    generation = harness(CALLS, ANSWER, server=server, profile=Profile(images=False))
    await generation.end()
    assert generation.tool_outputs() == ["(an attachment that this model cannot read)"]


async def test_same_tool_name_on_two_servers_is_distinguished() -> None:
    server = FakeMcp(tool("add"), answers={"add": [text_result("1"), text_result("2")]})
    calls: Round = [call("s__add", "1"), call("t__add", "2", index=1), finish("tool_calls")]
    both = [SERVER, {**SERVER, "server_label": "t", "server_url": "https://example.org"}]
    generation = harness(calls, ANSWER, server=server, tools=both)
    output = items_of(await generation.end())
    assert [item["server_label"] for item in output[:4]] == ["s", "t", "s", "t"]
    assert [address.url for address in server.opened] == ["https://example.com/mcp", "https://example.org"]


async def test_client_function_keeps_its_name_next_to_mcp_tool() -> None:
    tools = [ASKING, {"type": "function", "name": "s__add"}]
    server = FakeMcp(tool("add"), answers={"add": [text_result("42")]})
    first = harness([call("s__add_2", "1"), finish("tool_calls")], server=server, tools=tools)
    listed, request = items_of(await first.end())
    assert names(first) == ["s__add_2", "s__add"]
    second = harness(ANSWER, server=server, tools=tools, history=[listed, request], input=[approved(request)])
    assert [item["type"] for item in items_of(await second.end())] == ["mcp_call", "message"]
    assert second.tool_outputs() == ["42"]


# Tool choice


@pytest.mark.parametrize(
    ("choice", "seen", "ran"),
    [
        ({"type": "mcp", "server_label": "s", "name": "add"}, ["s__add"], ["add"]),
        ({"type": "mcp", "server_label": "s"}, ["s__add", "s__see", "s__del"], ["add"]),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "s", "name": "see"}]},
            ["s__add", "s__see", "s__del"],
            [],
        ),
        ("none", ["s__add", "s__see", "s__del"], []),
    ],
)
async def test_tool_choice_limits_mcp_calls(choice: Any, seen: list[str], ran: list[str]) -> None:
    server = FakeMcp(*TOOLS, answers={"add": [text_result("")]})
    generation = harness(CALLS, ANSWER, server=server, tool_choice=choice)
    await generation.end()
    assert (names(generation, 0), [name for name, _ in server.ran]) == (seen, ran)


async def test_choice_of_missing_mcp_tool_is_refused() -> None:
    choice = {"type": "mcp", "server_label": "s", "name": "none"}
    generation = harness(ANSWER, server=FakeMcp(*TOOLS), tool_choice=choice)
    with pytest.raises(ApiError, match="requires a call of a tool, but the model can call none"):
        await generation.generation.run()


# Server parameters of the request


@pytest.mark.parametrize(
    ("members", "headers"),
    [
        ({}, {}),
        ({"authorization": "t"}, {"Authorization": "Bearer t"}),
        ({"authorization": "Bearer t"}, {"Authorization": "Bearer t"}),
        ({"headers": {"x": "y"}}, {"x": "y"}),
        ({"headers": {"x": "y"}, "authorization": "t"}, {"x": "y", "Authorization": "Bearer t"}),
    ],
)
async def test_authorization_and_headers_are_sent_to_server_only(members: Json, headers: Json) -> None:
    server = FakeMcp(tool("add"))
    generation = harness(ANSWER, server=server, tools=[{**SERVER, **members}])
    events = await generation.end()
    assert server.opened[0].headers == headers
    assert events[-1]["response"]["tools"][0]["headers"] is None
    assert "y" not in repr(server.opened[0]).replace("mcp_servers", "")


async def test_connector_is_opened_by_id() -> None:
    server = FakeMcp(tool("add"))
    generation = harness(ANSWER, server=server, tools=[{"type": "mcp", "server_label": "s", "connector_id": "wiki"}])
    await generation.end()
    assert (server.opened[0].url, server.opened[0].connector_id) == (None, "wiki")


async def test_server_description_is_added_to_tools() -> None:
    server = FakeMcp(tool("add", description="Adds."), tool("see"))
    generation = harness(ANSWER, server=server, tools=[{**SERVER, "server_description": "Sums."}])
    await generation.end()
    described = [each["function"]["description"] for each in generation.inference.requests[0]["tools"]]
    assert described == ["Adds.\n(Server 's': Sums.)", "(Server 's': Sums.)"]


# Recovery


@pytest.mark.parametrize(
    ("hints", "patterns", "runs"),
    [
        ({}, [], 1),
        ({"readOnlyHint": True}, [], 2),
        ({"idempotentHint": True}, [], 2),
        ({"readOnlyHint": False, "destructiveHint": False}, [], 1),
        ({}, ["s/a*"], 2),
        ({}, ["t/*"], 1),
    ],
)
async def test_interrupted_mcp_call_is_repeated_only_if_safe(hints: Json, patterns: list[str], runs: int) -> None:
    answers: dict[str, list[Answer]] = {"add": [asyncio.Event(), text_result("42")]}
    server = FakeMcp(tool("add", annotations=hints), answers=answers, repeatable=patterns)
    first = harness(CALLS, server=server)
    work = asyncio.create_task(first.generation.run())
    await server.begun.acquire()
    work.cancel()
    await asyncio.wait([work])
    second = harness(ANSWER, server=server, progress=first.steps[-1])
    second.assembler.response["output"][:] = first.assembler.response["output"]
    second.assembler.resume(
        first.assembler.numbered, second.assembler.used, first.steps[-1].new_items, first.steps[-1].waiting
    )
    assert await second.generation.run() == COMPLETED
    output = second.assembler.response["output"]
    assert [item["type"] for item in output] == ["mcp_list_tools", "mcp_call", "message"]
    assert (len(server.ran), server.listed, server.open) == (runs, 1, 0)
    assert output[1]["status"] == ("completed" if runs == 2 else "failed")
    assert second.tool_outputs() == ["42"] if runs == 2 else "interrupted" in second.tool_outputs()[0]


# Items that clients send back


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"output": "42"}, "42"),
        ({"error": {"type": "http_error", "code": 500, "message": "No."}}, "No."),
        ({"error": "It broke."}, "It broke."),
        ({"error": {"type": "mcp_tool_execution_error", "content": "odd"}}, "odd"),
        ({"status": "incomplete"}, "(The call was cut off; its result is not known.)"),
    ],
)
async def test_mcp_call_item_without_exchange_is_sent_to_model(fields: Json, expected: str) -> None:
    item = {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "add", "arguments": "{}", **fields}
    generation = harness(ANSWER, server=FakeMcp(tool("add")), input=[item])
    await generation.end()
    assert generation.tool_outputs() == [expected]


# The default of `require_approval`


@pytest.mark.parametrize(("default", "kind"), [("always", "mcp_approval_request"), ("never", "mcp_call")])
async def test_default_of_stack_applies_without_require_approval(default: Any, kind: str) -> None:
    server = FakeMcp(tool("add"), answers={"add": [text_result("42")]}, require_approval=default)
    silent = {name: value for name, value in SERVER.items() if name != "require_approval"}
    events = await harness(CALLS, ANSWER, server=server, tools=[silent]).end()
    assert items_of(events)[1]["type"] == kind


async def test_require_approval_always_overrides_default_of_stack() -> None:
    server = FakeMcp(tool("add"), require_approval="never")
    events = await harness(CALLS, ANSWER, server=server, tools=[ASKING]).end()
    assert items_of(events)[1]["type"] == "mcp_approval_request"
