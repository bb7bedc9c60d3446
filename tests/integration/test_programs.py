"""Programs that the model writes to call tools: their items, their calls, and how later requests continue them."""

import json
from typing import Any, Final

import openai
import pytest

from tests.support.openai_client import MODEL, NAME, Json, create, function, messages, sent, stream
from tests.support.upstream import Upstream, reply, text, tool_call

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

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
