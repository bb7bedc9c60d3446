"""MCP servers with endless lists, answers and streams."""

from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import httpx

from tests.support.hostile_mcp import (
    ENDLESS_STREAMS,
    EVENTS,
    JSON,
    OVERFULL,
    HostileMcpServer,
    endless,
    event,
    events,
    overfull,
)
from tests.support.socket_client import SocketClient
from tests.support.upstream import reply, text
from tests.support.web import Answer
from tests.support.wire import Json

from .attacker import DONE, Attacker, Attacks, calling, ended, refused

ATTACKS: Final = Attacks()
PATH: Final = "/mcp"
FILE_BYTES: Final = 64 * 2**20
"""The limit on files, pages and outputs that one user's requests hold in the attacked stack."""
RESULT: Final = 900_000
RUNNING: Final = 80


def use(at: Attacker) -> httpx.Response:
    """Request a response whose model calls a tool of the server."""
    at.upstream.script("calls", [calling("s__add", {}), DONE])
    tool = {"type": "mcp", "server_label": "s", "server_url": at.web.url(PATH), "require_approval": "never"}
    return at.ask(model="local/calls", tools=[tool])


def answered(at: Attacker, method: str, answer: Any, why: str = "") -> HostileMcpServer:
    """Require that the server's answer to a method is rejected, as an error for the client or for the call, and why."""
    hostile = HostileMcpServer(at.web, PATH)
    hostile.answers[method] = answer
    response = use(at)
    if method != "tools/call":
        refused(response, 424)
        return hostile
    [call] = [item for item in ended(response)["output"] if item["type"] == "mcp_call"]
    assert call["status"] == "failed"
    assert why in call["error"]["message"]
    return hostile


@ATTACKS.add(**ENDLESS_STREAMS)
def mcp_stream_without_end(at: Attacker, case: bytes) -> None:
    answered(at, "tools/call", lambda _: Answer(endless(case), 200, EVENTS))


@ATTACKS.add(initialize="initialize", tools="tools/list")
def mcp_greeting_or_list_of_tools_in_a_line_without_end(at: Attacker, case: str) -> None:
    answered(at, case, lambda _: Answer(endless(ENDLESS_STREAMS["line"]), 200, EVENTS))


@ATTACKS.add(pages=(100, 32), large=(100_000, 3))
def mcp_list_of_tools_without_end(at: Attacker, case: tuple[int, int]) -> None:
    """The maximum number of pages that are requested from the server."""
    size, most = case
    tool = {"name": "add", "description": "x" * size, "inputSchema": {"type": "object"}}
    before = HostileMcpServer(at.web, PATH).methods.count("tools/list")
    hostile = answered(at, "tools/list", lambda _: {"tools": [tool] * 5, "nextCursor": "again"})
    assert 1 < hostile.methods.count("tools/list") - before <= most


@ATTACKS.add(**OVERFULL, text=b'"' + b"x" * 3_000_000)
def mcp_answer_with_too_much_in_it(at: Attacker, case: bytes) -> None:
    why = "larger than this server allows"
    answered(at, "tools/call", lambda request: Answer(overfull(request, case), 200, JSON), why)
    answered(at, "tools/call", lambda request: events(b"data: " + overfull(request, case) + b"\n\n"), why)


@ATTACKS.add(digits=b"1" * 900_000, escapes=b'"' + b"\\u0000" * 150_000)
def mcp_answer_that_is_no_json(at: Attacker, case: bytes) -> None:
    why = "does not follow"
    answered(at, "tools/call", lambda request: Answer(overfull(request, case), 200, JSON), why)
    answered(at, "tools/call", lambda request: events(b"data: " + overfull(request, case) + b"\n\n"), why)


@ATTACKS.add(ping="ping", sampling="sampling/createMessage")
def mcp_requests_without_end(at: Attacker, case: str) -> None:
    requests = b"".join(event({"id": number, "method": case, "params": {}}) for number in range(1_000))
    answered(at, "tools/call", lambda _: Answer(endless(requests), 200, EVENTS))


@ATTACKS.add()
def mcp_results_of_many_calls_that_are_large_together(at: Attacker) -> None:
    HostileMcpServer(at.web, PATH).answers["tools/call"] = partial(text_result, "x" * 900_000)
    at.upstream.script("calls", [*[calling("s__add", {})] * 8, DONE])
    tool = {"type": "mcp", "server_label": "s", "server_url": at.web.url(PATH), "require_approval": "never"}
    calls = [item for item in ended(at.ask(model="local/calls", tools=[tool]))["output"] if item["type"] == "mcp_call"]
    assert {call["status"] for call in calls} == {"completed", "failed"}


@ATTACKS.add()
def mcp_results_of_many_running_responses(at: Attacker) -> None:
    """Each is within its own limits. The result that has no room is an error for the model."""
    HostileMcpServer(at.web, PATH).answers["tools/call"] = partial(text_result, "x" * RESULT)
    tool = {"type": "mcp", "server_label": "s", "server_url": at.web.url(PATH), "require_approval": "never"}
    models = [f"runs-{number}" for number in range(RUNNING)]
    with ExitStack() as open_all:
        for model in models:
            at.upstream.script(model, [calling("s__add", {}), reply(text("x"), hold=0, end="hang")])
            body = {"model": f"local/{model}", "input": "x", "tools": [tool], "stream": True}
            open_all.enter_context(SocketClient(at.stack, body, None, "/v1/responses", at.headers))
        for model in models:
            at.upstream.wait_for(model, 2)
        at.others_turn()
    results = [at.upstream.requests(model)[-1].body["messages"][-1]["content"] for model in models]
    held = sum(each.startswith("x") for each in results)
    assert 0 < held * RESULT <= FILE_BYTES < RUNNING * RESULT


def text_result(words: str, _: Json) -> Json:
    """Return a result with this text."""
    return {"content": [{"type": "text", "text": words}]}


def servers(at: Attacker, count: int) -> list[Json]:
    """Return the declarations of this number of servers."""
    one = {"type": "mcp", "server_url": at.web.url(PATH), "require_approval": "never"}
    return [{**one, "server_label": f"s{number}"} for number in range(count)]


@ATTACKS.add(few_too_many=33, all_tools=1_024)
def many_mcp_servers(at: Attacker, case: int) -> None:
    """They are counted when the request is checked, and again with those of its history before any is connected to."""
    hostile = HostileMcpServer(at.web, PATH)
    before = len(hostile.methods)
    refused(at.ask(tools=servers(at, case)), 400)
    assert len(hostile.methods) == before


@ATTACKS.add(bytes={"description": "x" * 90_000}, tools={})
def mcp_lists_that_are_large_together(at: Attacker, case: Json) -> None:
    count = 10 if case else 500
    tools = [{"name": f"t{number}", "inputSchema": {"type": "object"}, **case} for number in range(count)]
    HostileMcpServer(at.web, PATH).answers["tools/list"] = lambda _: {"tools": tools}
    refused(at.ask(tools=servers(at, 30)), 424)
