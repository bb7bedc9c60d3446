"""The unmodified OpenAI Agents SDK."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_replies import PROGRAM, SAID, WEATHER
from tests.support.clients import python_client
from tests.support.mcp_server import McpServers
from tests.support.openai_client import MODEL, NAME, Json, messages, tool_outputs
from tests.support.stack import LiveStack
from tests.support.upstream import Reply, Upstream, reply, text, tool_call

# The client reads what this package writes; test_client_hosts.py has the host's answers.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.day(4), pytest.mark.one_host]

type Agents = Callable[..., Any]


@pytest.fixture
def agents(stack: LiveStack, upstream: Upstream, tmp_path: Path) -> Agents:
    """Run a scenario against a model with these replies."""

    def run(scenario: str, *replies: Reply, **env: str) -> Any:
        upstream.script(NAME, replies)
        return python_client("agents", "with_agents.py", stack, tmp_path, scenario, MODEL, env=env).result

    return run


@pytest.mark.parametrize("way", ["tools", "stateless", "chained"])
def test_agents_function_tool_is_called(agents: Agents, upstream: Upstream, way: str) -> None:
    assert agents(way, WEATHER, SAID) == "It snows."
    assert tool_outputs(upstream) == ["Snow in Oslo."]
    assert messages(upstream)[-2]["reasoning_content"] == "Hm."


def test_agents_sessions_on_client_and_server_keep_history(agents: Agents, upstream: Upstream) -> None:
    mine, theirs, left = agents("sessions", reply(text("1.")), reply(text("2.")), WEATHER, SAID, reply(text("Yes.")))
    assert (mine, theirs) == (["1.", "2."], ["It snows.", "Yes."])
    assert left == ["message", "reasoning", "function_call", "function_call_output", "message", "message"]
    texts = [[message["content"] for message in each.body["messages"]] for each in upstream.requests(NAME)]
    assert texts[1] == ["One?", "1.", "Two?"]
    assert texts[4] == ["Weather in Oslo?", None, "Snow in Oslo.", "It snows.", "Sure?"]


def test_agents_handoff_reaches_the_other_agent(agents: Agents, upstream: Upstream) -> None:
    call = reply(tool_call(0, "c1", "transfer_to_billing", "{}"))
    assert agents("handoff", call, reply(text("It is paid."))) == ["Billing", "It is paid."]
    assert messages(upstream)[0] == {"role": "system", "content": "You do bills."}


def test_agents_structured_output_is_parsed(agents: Agents, upstream: Upstream) -> None:
    assert agents("structured", reply(text('{"name":"Ada",', '"age":36}'))) == ["Person", "Ada", 36]
    [request] = upstream.requests(NAME)
    assert request.body["response_format"]["json_schema"]["strict"] is True


def test_agents_stream_has_deltas_and_items(agents: Agents) -> None:
    deltas, kinds, final = agents("streamed", WEATHER, SAID)
    assert (deltas, final) == (["It ", "snows."], "It snows.")
    assert kinds == ["reasoning_item_created", "tool_called", "tool_output", "message_output_created"]


def test_agents_custom_tool_is_called(agents: Agents, upstream: Upstream) -> None:
    assert agents("custom", reply(tool_call(0, "c1", "count", '{"input":"abc"}')), SAID) == "It snows."
    assert tool_outputs(upstream) == ["3 characters."]


def test_agents_shell_tool_is_called(agents: Agents, upstream: Upstream) -> None:
    call = reply(tool_call(0, "c1", "shell", '{"commands":["ls","pwd"]}'))
    assert agents("shell", call, SAID) == ["It snows.", [["ls", "pwd"]]]
    assert "a.txt" in tool_outputs(upstream)[0]


def test_agents_local_shell_tool_is_called(agents: Agents, upstream: Upstream) -> None:
    call = reply(tool_call(0, "c1", "local_shell", '{"command":["ls"]}'))
    assert agents("local_shell", call, SAID) == ["It snows.", [["ls"]]]
    assert tool_outputs(upstream) == ["a.txt"]


def test_agents_apply_patch_tool_is_called(agents: Agents, upstream: Upstream) -> None:
    call = reply(tool_call(0, "c1", "apply_patch", '{"type":"create_file","path":"a","diff":"+hi"}'))
    assert agents("apply_patch", call, SAID) == ["It snows.", [["create_file", "a", "+hi"]]]
    assert "Created." in tool_outputs(upstream)[0]


def test_agents_hosted_mcp_tool_is_called(agents: Agents, upstream: Upstream, mcp: McpServers) -> None:
    call = reply(tool_call(0, "c1", "mcp__echo", '{"text":"hi"}'))
    output, kinds = agents("hosted_mcp", call, SAID, MCP_URL=mcp.url("mcp"))
    assert (output, kinds) == ("It snows.", ["mcp_list_tools", "mcp_call", "message"])
    assert tool_outputs(upstream) == ["hi"]


def test_agents_tool_search_loads_namespace_tools(agents: Agents, upstream: Upstream) -> None:
    search = reply(tool_call(0, "c1", "tool_search", '{"paths":["time"]}'))
    call = reply(tool_call(0, "c2", "time__clock", '{"zone":"CET"}'))
    assert agents("tool_search", search, call, SAID) == "It snows."
    assert tool_outputs(upstream)[-1] == "Noon in CET."
    offered: list[list[Json]] = [request.body["tools"] for request in upstream.requests(NAME)]
    assert [len(tools) for tools in offered] == [1, 2, 2]


@pytest.mark.parametrize("streamed", ["", "1"], ids=["whole", "streamed"])
@pytest.mark.parametrize("way", ["plain", "stateless", "chained", "conversation"])
def test_agents_program_calls_functions(agents: Agents, upstream: Upstream, way: str, streamed: str) -> None:
    output, kinds = agents("programs", PROGRAM, SAID, WAY=way, STREAMED=streamed)
    calls, results = ["function_call"] * 2, ["function_call_output"] * 2
    assert (output, kinds) == ("It snows.", ["program", *calls, *results, "program_output", "message"])
    assert tool_outputs(upstream) == ["18"]
