"""Programs that the model writes to call tools: their items, their calls, and how later requests continue them."""

import json
from typing import Any, Final

import openai
import pytest

from tests.support.mcp_server import McpServers
from tests.support.openai_client import MODEL, NAME, Json, create, function, messages, sent, stream
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text, tool_call
from tests.support.waiting import wait_until
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Wire

pytestmark = pytest.mark.live

PROGRAMS: Final[Any] = {"type": "programmatic_tool_calling"}
STOCK: Final[Any] = {
    **function("stock", "sku"),
    "allowed_callers": ["programmatic"],
    "output_schema": {"type": "object", "properties": {"units": {"type": "integer"}}},
}
TOTAL: Final = """
const found = await Promise.all(["a", "b"].map(sku => tools.stock({sku})));
return found.reduce((sum, each) => sum + each.units, 0);
"""
SAID: Final = reply(text("There are 18."))


def program(code: str) -> Any:
    """Return the model's call that runs a program."""
    return reply(tool_call(0, "c1", "run_program", json.dumps({"code": code})))


def output_of(call: Json, value: Any, **more: Any) -> Any:
    """Return what a client sends for a call of a program."""
    return {"type": "function_call_output", "call_id": call["call_id"], "output": value, **more}


def kinds(response: Json) -> list[str]:
    """Return the types of the output's items."""
    return [item["type"] for item in response["output"]]


def test_program_calls_functions_of_the_client_and_goes_on_with_their_outputs(
    client: openai.OpenAI, upstream: Upstream
) -> None:
    upstream.script(NAME, [program(TOTAL), SAID])
    tools = [PROGRAMS, STOCK, function("other")]
    first = stream(client, model=MODEL, input="How many?", tools=tools).response
    written, *calls = first["output"]
    assert kinds(first) == ["program", "function_call", "function_call"]
    assert (first["status"], written["code"], written["call_id"]) == ("completed", TOTAL, "c1")
    assert [json.loads(call["arguments"]) for call in calls] == [{"sku": "a"}, {"sku": "b"}]
    assert [call["caller"] for call in calls] == [{"type": "program", "caller_id": "c1"}] * 2
    [offered] = [sent(upstream)["tools"]]
    assert [tool["function"]["name"] for tool in offered] == ["run_program", "other"]
    assert '"sku"' in offered[0]["function"]["description"]
    assert '"units"' in offered[0]["function"]["description"]
    outputs = [
        output_of(call, json.dumps({"units": n}), caller=call["caller"]) for call, n in zip(calls, [7, 11], strict=True)
    ]
    second = stream(client, model=MODEL, input=outputs[::-1], tools=tools, previous_response_id=first["id"]).response
    ended, message = second["output"]
    assert (ended["type"], ended["call_id"], ended["result"], ended["status"]) == (
        "program_output",
        "c1",
        "18",
        "completed",
    )
    assert message["content"][0]["text"] == "There are 18."
    asked, called, result = messages(upstream)
    assert asked["content"] == "How many?"
    [call] = called["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("c1", "run_program")
    assert json.loads(call["function"]["arguments"]) == {"code": TOTAL}
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", "c1", "18")


def test_program_goes_on_without_stored_responses(client: openai.OpenAI, upstream: Upstream) -> None:
    code = (
        "const one = await tools.stock({sku: 'a'}); const two = await tools.stock({sku: one.next}); text(two); text(2)"
    )
    upstream.script(NAME, [program(code), SAID])
    tools = [PROGRAMS, STOCK]
    history: list[Any] = [{"role": "user", "content": "How many?"}]
    for value in ({"next": "b"}, {"units": 1}):
        response = create(client, model=MODEL, input=history, tools=tools, store=False)
        [*_, call] = output = response["output"]
        history += [*output, output_of(call, json.dumps(value))]
    last = create(client, model=MODEL, input=history, tools=tools, store=False)
    assert last["output"][0]["result"] == '{"units":1}\n2'
    assert len(upstream.requests(NAME)) == 2


def test_program_that_fails_ends_when_the_client_has_answered_its_calls(
    client: openai.OpenAI, upstream: Upstream
) -> None:
    code = "tools.stock({sku: 'a'}).catch(() => 0); text('so far'); await tools.stock(1)"
    upstream.script(NAME, [program(code), SAID])
    tools = [PROGRAMS, STOCK]
    first = create(client, model=MODEL, input="How many?", tools=tools)
    assert kinds(first) == ["program", "function_call"]
    output = output_of(first["output"][1], "{}")
    second = create(client, model=MODEL, input=[output], tools=tools, previous_response_id=first["id"])
    assert kinds(second) == ["program_output", "message"]
    ended = second["output"][0]
    assert (ended["status"], ended["result"]) == (
        "incomplete",
        "so far\nError: The arguments of tools.stock are not valid: an object is expected. (line 1)",
    )


def test_program_calls_an_mcp_server(client: openai.OpenAI, upstream: Upstream, mcp: McpServers) -> None:
    code = """
const sums = await Promise.all([1, 2].map(a => tools.mcp__add({a, b: 3})));
const failure = await tools.mcp__add({a: "x", b: 0}).catch(error => error instanceof Error);
return [...sums, failure];
"""
    upstream.script(NAME, [program(code), SAID])
    server = {
        "type": "mcp",
        "server_label": "mcp",
        "server_url": mcp.url("mcp"),
        "require_approval": "never",
        "allowed_tools": ["add"],
        "allowed_callers": ["programmatic"],
    }
    response = stream(client, model=MODEL, input="Add.", tools=[PROGRAMS, server]).response
    assert kinds(response) == ["mcp_list_tools", "program", *["mcp_call"] * 3, "program_output", "message"]
    assert response["output"][-2]["result"] == '["4","5",true]'
    assert [tool["function"]["name"] for tool in upstream.requests(NAME)[0].body["tools"]] == ["run_program"]


def test_program_runs_code_and_shell_commands_in_containers(client: openai.OpenAI, upstream: Upstream) -> None:
    code = """
const printed = await tools.python({code: "print(6 * 7)"});
const [{stdout, outcome}] = await tools.shell({commands: ["echo hi"]});
return [printed, stdout, outcome];
"""
    upstream.script(NAME, [program(code), SAID])
    callers = {"allowed_callers": ["programmatic"]}
    tools: list[Any] = [
        PROGRAMS,
        {"type": "code_interpreter", "container": {"type": "auto"}, **callers},
        {"type": "shell", "environment": {"type": "container_auto"}, **callers},
    ]
    response = stream(client, model=MODEL, input="Run.", tools=tools).response
    assert kinds(response) == [
        "program",
        "code_interpreter_call",
        "shell_call",
        "shell_call_output",
        "program_output",
        "message",
    ]
    assert response["output"][-2]["result"] == '["42\\n","hi\\n",{"type":"exit","exit_code":0}]'


def test_program_goes_on_over_a_websocket(stack: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, [program(TOTAL), SAID])
    tools = [PROGRAMS, STOCK]
    with WebSocketClient(stack) as websocket:
        websocket.ask(model=MODEL, input="How many?", tools=tools, store=False)
        first = websocket.response()
        outputs = [output_of(call, '{"units": 9}') for call in first["output"][1:]]
        websocket.ask(model=MODEL, input=outputs, tools=tools, store=False, previous_response_id=first["id"])
        second = websocket.response()
    assert kinds(second) == ["program_output", "message"]
    assert second["output"][0]["result"] == "18"


def test_background_program_goes_on_in_its_conversation(client: openai.OpenAI, wire: Wire, upstream: Upstream) -> None:
    upstream.script(NAME, [program(TOTAL), SAID])
    conversation = client.conversations.create().id

    def run(given: Any) -> Json:
        body = {"model": MODEL, "input": given, "tools": [PROGRAMS, STOCK], "conversation": conversation}
        queued = wire.create(**body, background=True)
        wait_until(lambda: wire.retrieve(queued["id"])["status"] not in ("queued", "in_progress"))
        return wire.retrieve(queued["id"])

    first = run("How many?")
    second = run([output_of(call, '{"units": 9}') for call in first["output"][1:]])
    assert second["output"][0]["result"] == "18"
    assert [item.type for item in client.conversations.items.list(conversation, order="asc")] == [
        "message",
        "program",
        *["function_call"] * 2,
        *["function_call_output"] * 2,
        "program_output",
        "message",
    ]
