"""The unmodified OpenAI Agents SDK for JavaScript."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.client_replies import PROGRAM, SAID, WEATHER
from tests.support.clients import node_client
from tests.support.image_server import ImageServer
from tests.support.mcp_server import McpServers
from tests.support.openai_client import MODEL, NAME, Json, messages, tool_outputs
from tests.support.stack import LiveStack
from tests.support.upstream import Reply, Upstream, reply, text, tool_call
from tests.support.web import Web

# The client reads what this package writes; test_client_hosts.py has the host's answers.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.day(1), pytest.mark.one_host]

type Agents = Callable[..., Any]

ONE: Final = reply(text("1."))
ECHO: Final = reply(tool_call(0, "c1", "mcp__echo", '{"text":"hi"}'))


@pytest.fixture
def agents(stack: LiveStack, upstream: Upstream, tmp_path: Path) -> Agents:
    """Run a scenario against a model with these replies."""

    def run(scenario: str, *replies: Reply, **env: str) -> Any:
        upstream.script(NAME, replies)
        return node_client("agents-node", "with_agents_node.mjs", stack, tmp_path, scenario, MODEL, env=env).result

    return run


def texts(upstream: Upstream) -> list[list[Any]]:
    """Return the contents of the messages of each request."""
    return [[message["content"] for message in each.body["messages"]] for each in upstream.requests(NAME)]


@pytest.mark.parametrize("way", ["tools", "stateless"])
def test_agents_node_function_tool_is_called(agents: Agents, upstream: Upstream, way: str) -> None:
    assert agents(way, WEATHER, SAID) == "It snows."
    assert tool_outputs(upstream) == ["Snow in Oslo."]
    assert messages(upstream)[-2]["reasoning_content"] == "Hm."


def test_agents_node_continues_a_response(agents: Agents, upstream: Upstream) -> None:
    assert agents("chained", ONE, WEATHER, SAID) == "It snows."
    assert texts(upstream)[-1] == ["One?", "1.", "Weather in Oslo?", None, "Snow in Oslo."]


def test_agents_node_continues_a_conversation(agents: Agents, upstream: Upstream) -> None:
    assert agents("conversation", ONE, WEATHER, SAID) == ["1.", "It snows."]
    assert texts(upstream)[-1] == ["One?", "1.", "Weather in Oslo?", None, "Snow in Oslo."]


def test_agents_node_sessions_on_client_and_server_keep_history(agents: Agents, upstream: Upstream) -> None:
    mine, theirs, left = agents("sessions", ONE, reply(text("2.")), WEATHER, SAID, reply(text("Yes.")))
    assert (mine, theirs) == (["1.", "2."], ["It snows.", "Yes."])
    assert left == ["message", "reasoning", "function_call", "function_call_result", "message", "message"]
    assert texts(upstream)[1] == ["One?", "1.", "Two?"]
    assert texts(upstream)[4] == ["Weather in Oslo?", None, "Snow in Oslo.", "It snows.", "Sure?"]


def test_agents_node_session_is_compacted(agents: Agents, upstream: Upstream) -> None:
    said, kept, again = agents("compacted", ONE, reply(text("A summary.")), reply(text("2.")), reply(text("3.")))
    assert (said, again) == ("2.", "3.")
    assert "compaction" in kept
    assert "A summary." in json.dumps(texts(upstream)[-1])
    assert "One?" not in json.dumps(texts(upstream)[-1])


def test_agents_node_websocket_model_streams(agents: Agents, upstream: Upstream) -> None:
    assert agents("websocket", WEATHER, SAID) == [["It ", "snows."], "It snows."]
    assert tool_outputs(upstream) == ["Snow in Oslo."]


def test_agents_node_handoff_reaches_the_other_agent(agents: Agents, upstream: Upstream) -> None:
    call = reply(tool_call(0, "c1", "transfer_to_Billing", "{}"))
    assert agents("handoff", call, reply(text("It is paid."))) == ["Billing", "It is paid."]
    assert messages(upstream)[0] == {"role": "system", "content": "You do bills."}


def test_agents_node_structured_output_is_parsed(agents: Agents, upstream: Upstream) -> None:
    assert agents("structured", reply(text('{"name":"Ada",', '"age":36}'))) == {"name": "Ada", "age": 36}
    [request] = upstream.requests(NAME)
    assert request.body["response_format"]["json_schema"]["strict"] is True


def test_agents_node_stream_has_deltas_and_items(agents: Agents) -> None:
    deltas, names, final = agents("streamed", WEATHER, SAID)
    assert (deltas, final) == (["It ", "snows."], "It snows.")
    assert names == ["reasoning_item_created", "tool_called", "tool_output", "message_output_created"]


def test_agents_node_shell_tool_is_called(agents: Agents, upstream: Upstream) -> None:
    call = reply(tool_call(0, "c1", "shell", '{"commands":["ls","pwd"]}'))
    assert agents("shell", call, SAID) == ["It snows.", [["ls", "pwd"]]]
    assert "a.txt" in tool_outputs(upstream)[0]


def test_agents_node_apply_patch_tool_is_called(agents: Agents, upstream: Upstream) -> None:
    call = reply(tool_call(0, "c1", "apply_patch", '{"type":"create_file","path":"a","diff":"+hi"}'))
    assert agents("patch", call, SAID) == ["It snows.", [["create_file", "a", "+hi"]]]
    assert "Created." in tool_outputs(upstream)[0]


def test_agents_node_hosted_mcp_tool_is_called(agents: Agents, upstream: Upstream, mcp: McpServers) -> None:
    output, kinds = agents("hostedMcp", ECHO, SAID, MCP_URL=mcp.url("mcp"))
    assert (output, kinds) == ("It snows.", ["mcp_list_tools", "mcp_call", "message"])
    assert tool_outputs(upstream) == ["hi"]


def test_agents_node_hosted_mcp_call_is_approved(agents: Agents, upstream: Upstream, mcp: McpServers) -> None:
    assert agents("approvedMcp", ECHO, SAID, MCP_URL=mcp.url("mcp")) == [1, "It snows."]
    assert tool_outputs(upstream) == ["hi"]


def test_agents_node_own_mcp_server_is_called(agents: Agents, upstream: Upstream, mcp: McpServers) -> None:
    call = reply(tool_call(0, "c1", "echo", '{"text":"hi"}'))
    assert agents("ownMcp", call, SAID, MCP_URL=mcp.url("mcp")) == "It snows."
    assert "hi" in json.dumps(tool_outputs(upstream))


def test_agents_node_tool_search_loads_namespace_tools(agents: Agents, upstream: Upstream) -> None:
    search = reply(tool_call(0, "c1", "tool_search", '{"paths":["time"]}'))
    call = reply(tool_call(0, "c2", "time__clock", '{"zone":"CET"}'))
    assert agents("toolSearch", search, call, SAID) == "It snows."
    assert tool_outputs(upstream)[-1] == "Noon in CET."
    offered: list[list[Json]] = [request.body["tools"] for request in upstream.requests(NAME)]
    assert [len(tools) for tools in offered] == [1, 2, 2]


def test_agents_node_hosted_tools_are_run(agents: Agents, upstream: Upstream, web: Web) -> None:
    found = {"url": web.url("/otters"), "title": "Otters", "content": "All about otters."}
    web.say_json("/searxng/search", {"query": "otters", "results": [found]})
    images = ImageServer(web)
    search = reply(tool_call(0, "c1", "web_search", '{"queries": ["otters"]}'))
    draw = reply(tool_call(0, "c2", "generate_image", '{"prompt": "An otter"}'))
    output, kinds = agents("hosted", search, draw, SAID)
    assert (output, kinds) == ("It snows.", ["web_search_call", "image_generation_call", "message"])
    assert len(images.calls) == 1


@pytest.mark.parametrize("streamed", ["", "1"], ids=["whole", "streamed"])
@pytest.mark.parametrize("way", ["plain", "stateless"])
def test_agents_node_program_calls_functions(agents: Agents, upstream: Upstream, way: str, streamed: str) -> None:
    output, kinds = agents("programs", PROGRAM, SAID, WAY=way, STREAMED=streamed)
    calls, results = ["function_call"] * 2, ["function_call_result"] * 2
    assert (output, kinds) == ("It snows.", ["program", *calls, *results, "program_output", "message"])
    assert tool_outputs(upstream) == ["18"]
