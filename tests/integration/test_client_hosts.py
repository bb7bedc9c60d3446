"""The hosts' own clients, each on its host: unmodified llama-stack-client and ogx-client."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.clients import python_client
from tests.support.mcp_server import McpServers
from tests.support.openai_client import MODEL, NAME, messages
from tests.support.search import searxng
from tests.support.stack import Host, LiveStack
from tests.support.upstream import Reply, Upstream, reasoning, reply, text, tool_call
from tests.support.web import Answer, ReceivedRequest, Web
from tests.support.wire import roles_and_texts

pytestmark = [pytest.mark.live, pytest.mark.both_hosts, pytest.mark.extended]

type HostClient = Callable[..., Any]

WEATHER: Final = reply(reasoning("Hm."), tool_call(0, "c1", "weather", '{"city":', '"Oslo"}'))
ECHO: Final = reply(tool_call(0, "c1", "mcp__echo", '{"text": "hi"}'))


@pytest.fixture
def client_of_host(host: Host, stack: LiveStack, upstream: Upstream, tmp_path: Path) -> HostClient:
    """Run a scenario of the host's client against a model with these replies."""

    def run(scenario: str, *replies: Reply, more: str = "") -> Any:
        upstream.script(NAME, replies or [reply(text("Hello"))])
        name = {"ogx": "ogx-client", "llama_stack": "llama-stack-client"}[host]
        arguments = [name.replace("-", "_"), scenario, MODEL, *([more] if more else [])]
        return python_client(name, "with_hosts.py", stack, tmp_path, *arguments).result

    return run


@pytest.mark.smoke
def test_response_is_read(client_of_host: HostClient) -> None:
    assert client_of_host("make", reply(text("Hello"))) == ["Hello", "completed", {"a": "b"}, 0.5]


def test_stream_has_the_class_of_each_event(client_of_host: HostClient) -> None:
    kinds, output = client_of_host("stream", reply(reasoning("Hm."), text("One ", "look."), WEATHER.chunks))
    assert output == ["reasoning", "message", "reasoning", "function_call"]
    assert kinds[:2] == ["created", "in_progress"]
    assert {"content_part.added", "output_text.delta", "function_call_arguments.done", "completed"} <= set(kinds)


def test_response_continues_another(client_of_host: HostClient, upstream: Upstream) -> None:
    assert client_of_host("chain", reply(text("1.")), reply(text("2."))) == ["1.", "2.", True]
    assert roles_and_texts(messages(upstream)) == [("user", "One?"), ("assistant", "1."), ("user", "Two?")]


def test_function_is_called_and_answered(client_of_host: HostClient, upstream: Upstream) -> None:
    assert client_of_host("tools", WEATHER, reply(text("Cold."))) == ["weather", '{"city":"Oslo"}', "Cold."]
    assert messages(upstream)[-1]["content"] == "-3"


def test_mcp_server_is_called(client_of_host: HostClient, mcp: McpServers) -> None:
    output, kinds = client_of_host("mcp", ECHO, reply(text("Done.")), more=mcp.url())
    assert output == ["mcp_list_tools", "mcp_call", "message"]
    assert kinds[0] == "response.mcp_list_tools.in_progress"
    assert kinds[-1] == "response.mcp_call.completed"


def test_mcp_call_is_approved(client_of_host: HostClient, mcp: McpServers) -> None:
    found = client_of_host("approval", ECHO, reply(text("Done.")), more=mcp.url())
    assert found == [["mcp_list_tools", "mcp_approval_request"], ["mcp_call", "message"], "Done."]


def test_web_is_searched_and_cited(client_of_host: HostClient, web: Web) -> None:
    def search(request: ReceivedRequest) -> Answer:
        found = [(web.url("/otters"), "Otters", "All about otters.")]
        return Answer(json.dumps(searxng("otters", found)).encode(), headers={"content-type": "application/json"})

    web.answers["/searxng/search"] = search
    queries = '{"queries": ["otters"]}'
    found = client_of_host("search", reply(tool_call(0, "c1", "web_search", queries)), reply(text("Fish【1】.")))
    output, kinds = found
    assert output == ["web_search_call", "message"]
    assert kinds == [f"response.web_search_call.{name}" for name in ("in_progress", "searching", "completed")]


def test_responses_are_listed_retrieved_and_deleted(client_of_host: HostClient) -> None:
    assert client_of_host("stored") == [True, ["message"], True, True]


def test_missing_response_is_not_found(client_of_host: HostClient) -> None:
    assert client_of_host("missing") in (["NotFoundError", True], ["NotFoundException", True])


def test_conversation_is_kept(client_of_host: HostClient, upstream: Upstream) -> None:
    found = client_of_host("conversation", reply(text("Ada.")))
    assert found == {
        "metadata": [{"a": "b"}, {"a": "c"}],
        "says": "Ada.",
        "added": ["message"],
        "listed": ["user", "user", "assistant", "user"],
        "one": True,
        "left": True,
        "deleted": True,
    }
    assert roles_and_texts(messages(upstream)) == [("user", "I am Ada."), ("user", "Who am I?")]
