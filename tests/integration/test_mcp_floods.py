"""MCP servers that send endless or oversized data, with the host's version of the `mcp` package."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

import pytest

from llama_stack_responses.fetch import server_events
from llama_stack_responses.tools.mcp.sessions import McpClientSession
from tests.integration.test_mcp_sessions import Json, address, call, end, failure, servers
from tests.support.hostile_mcp import (
    DONE,
    ENDLESS_STREAMS,
    EVENTS,
    JSON,
    OVERFULL,
    PROGRESS,
    HostileMcpServer,
    answer,
    endless,
    event,
    events,
    json_answer,
    overfull,
)
from tests.support.thread_calls import calls_of_this_thread
from tests.support.web import Answer, ReceivedRequest, Web

# No stack is started. The tests run on both hosts because each has its own version of the `mcp` package.
pytestmark = pytest.mark.live

SECONDS: Final = 120
"""The timeout after which a test fails."""


@pytest.fixture
def hostile(web: Web) -> HostileMcpServer:
    return HostileMcpServer(web)


@pytest.fixture
async def session(hostile: HostileMcpServer) -> AsyncIterator[McpClientSession]:
    created = servers().session(address(hostile.web.url("/mcp")))
    await created.list_tools()
    yield created
    await end(created)


async def error_of(session: McpClientSession) -> str:
    async with asyncio.timeout(SECONDS):
        message: str = (await failure(call(session)))["message"]
    return message


@pytest.mark.parametrize("piece", ENDLESS_STREAMS.values(), ids=ENDLESS_STREAMS)
async def test_endless_mcp_event_stream_fails_the_call(
    hostile: HostileMcpServer, session: McpClientSession, piece: bytes
) -> None:
    hostile.answers["tools/call"] = lambda _: Answer(endless(piece), 200, EVENTS)
    assert "larger than this server allows" in await error_of(session)


async def test_endless_mcp_json_answer_fails_the_call(hostile: HostileMcpServer, session: McpClientSession) -> None:
    hostile.answers["tools/call"] = lambda _: Answer(endless(b'{"a":' * 1_000), 200, JSON)
    assert "larger than this server allows" in await error_of(session)


async def test_mcp_progress_notifications_before_the_answer_are_ignored(
    hostile: HostileMcpServer, session: McpClientSession
) -> None:
    def progress(request: Json) -> Answer:
        return events(event(PROGRESS) * 500, answer(request, DONE))

    hostile.answers["tools/call"] = progress
    assert (await call(session))["content"] == DONE["content"]


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list", "odd"])
async def test_mcp_requests_for_undeclared_capabilities_are_not_answered(
    hostile: HostileMcpServer, session: McpClientSession, method: str
) -> None:
    def flood(request: Json) -> Answer:
        requests = [event({"id": number, "method": method, "params": {}}) for number in range(200)]
        return events(*requests, answer(request, DONE))

    hostile.answers["tools/call"] = flood
    assert (await call(session))["content"] == DONE["content"]
    bodies = [request.json() for request in hostile.web.seen if request.method == "POST"]
    assert all("method" in body for body in bodies), "this server answered one"


async def test_mcp_ping_flood_fails_the_call(hostile: HostileMcpServer, session: McpClientSession) -> None:
    pings = [event({"id": number, "method": "ping"}) for number in range(200)]
    hostile.answers["tools/call"] = lambda _: events(*pings)
    assert "sends more pings" in await error_of(session)


@pytest.mark.parametrize("body", OVERFULL.values(), ids=OVERFULL)
@pytest.mark.parametrize("kind", ["json", "events"])
async def test_oversized_mcp_message_fails_the_call(
    hostile: HostileMcpServer, session: McpClientSession, body: bytes, kind: str
) -> None:
    def deep(request: Json) -> Answer:
        text = overfull(request, body)
        return events(b"data: " + text + b"\n\n") if kind == "events" else Answer(text, 200, JSON)

    hostile.answers["tools/call"] = deep
    assert "larger than this server allows" in await error_of(session)


async def test_mcp_answers_over_the_session_limit_end_the_session(
    hostile: HostileMcpServer, session: McpClientSession
) -> None:
    """The next call gets a new session."""
    large = {"content": [{"type": "text", "text": "x" * 90_000}]}
    hostile.answers["tools/call"] = lambda request: events(answer(request, large))
    for _ in range(4):
        assert (await call(session))["content"] == large["content"]
    assert "more in one session" in await error_of(session)


async def test_mcp_stream_resumed_too_often_ends_the_session(
    hostile: HostileMcpServer, session: McpClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_events, "_RETRY_MS", range(5, 6))  # 500 or more otherwise
    usual = hostile.web.answer_all
    assert usual
    again = events(b"id: 1\nretry: 0\ndata:\n\n")
    hostile.answers["tools/call"] = lambda _: again

    def answer_all(request: ReceivedRequest) -> Answer:
        return again if "last-event-id" in request.headers else usual(request)

    hostile.web.answer_all = answer_all
    fresh = servers().session(address(hostile.web.url("/mcp")))
    assert "event streams too often" in await error_of(fresh)
    assert 90 < sum("last-event-id" in request.headers for request in hostile.web.seen) <= 100
    await end(fresh)


async def test_endless_mcp_redirects_fail_the_call(hostile: HostileMcpServer, session: McpClientSession) -> None:
    hostile.answers["tools/call"] = lambda _: Answer(b"", 307, {"location": hostile.web.url("/mcp")})
    before = len(hostile.web.seen)
    assert await error_of(session)
    assert len(hostile.web.seen) - before <= 25


@pytest.mark.parametrize("location", ["http://[", "http://xn--/", "http://\x7f/", "http://127.0.0.1:99999/", "\xff"])
async def test_mcp_redirect_to_another_server_fails_the_call(
    hostile: HostileMcpServer, session: McpClientSession, location: str
) -> None:
    hostile.answers["tools/call"] = lambda _: Answer(b"", 307, {"location": location})
    assert "redirects to another one" in await error_of(session)


@pytest.mark.parametrize("value", ["\xe4", "a b", "x" * 2_000])
async def test_invalid_mcp_session_id_fails_the_initialization(hostile: HostileMcpServer, value: str) -> None:
    greeting = hostile.answers["initialize"]

    def greeted(request: Json) -> Answer:
        body = {"jsonrpc": "2.0", "id": request["id"], "result": greeting(request)}
        return json_answer(body, headers={"mcp-session-id": value})

    hostile.answers["initialize"] = greeted
    session = servers().session(address(hostile.web.url("/mcp")))
    async with asyncio.timeout(SECONDS):
        assert (await failure(session.list_tools()))["code"] == 502
    await end(session)


async def test_mcp_tool_list_over_the_size_limit_is_refused(hostile: HostileMcpServer) -> None:
    tool = {"name": "add", "description": "x" * 60_000, "inputSchema": {"type": "object"}}
    hostile.answers["tools/list"] = lambda _: {"tools": [tool], "nextCursor": "again"}
    session = servers().session(address(hostile.web.url("/mcp")))
    error = await failure(session.list_tools())
    assert error["message"] == "The server lists more tools than this server allows."
    assert hostile.methods.count("tools/list") == 2
    await end(session)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:1/schema"},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}},
        {"properties": {"a": {"type": "no such type"}}},
    ],
)
async def test_mcp_result_is_not_validated_against_the_output_schema(hostile: HostileMcpServer, schema: Json) -> None:
    """The schema's regular expression would block the event loop practically forever."""
    tool = {"name": "add", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object", **schema}}
    hostile.answers["tools/list"] = lambda _: {"tools": [tool]}
    hostile.answers["tools/call"] = lambda _: {"content": [], "structuredContent": {"a": "a" * 64 + "!"}}
    session = servers().session(address(hostile.web.url("/mcp")))
    await session.list_tools()
    assert (await call(session))["structuredContent"] == {"a": "a" * 64 + "!"}
    await end(session)


async def test_large_mcp_answers_are_processed_outside_of_the_event_loop(hostile: HostileMcpServer) -> None:
    tools = [{"name": f"t{number}", "inputSchema": {"type": "object", "title": "x" * 300}} for number in range(120)]
    content = [{"type": "text", "text": "x" * 1_000} for _ in range(80)]
    hostile.answers["tools/list"] = lambda _: {"tools": tools}
    hostile.answers["tools/call"] = lambda _: {"content": [*content, {"type": "text", "text": "x" * 5_000}]}
    session = servers().session(address(hostile.web.url("/mcp")))
    with calls_of_this_thread() as called:
        assert len(await session.list_tools()) == len(tools)
        assert [len(each["text"]) for each in (await call(session))["content"]] == [*[1_000] * 80, 5_000]
    assert not {"_size", "LargeTexts.restore_large"} & called
    await end(session)


async def test_mcp_call_does_not_list_tools(hostile: HostileMcpServer) -> None:
    session = servers().session(address(hostile.web.url("/mcp")))
    await call(session)
    assert hostile.methods.count("tools/list") == 0
    await end(session)


async def test_mcp_integer_over_64_bits_becomes_a_float(hostile: HostileMcpServer, session: McpClientSession) -> None:
    text = b'{"jsonrpc": "2.0", "id": %d, "result": {"content": [], "structuredContent": {"a": %d}}}'
    hostile.answers["tools/call"] = lambda request: Answer(text % (request["id"], 10**30), 200, JSON)
    assert (await call(session))["structuredContent"] == {"a": 1e30}


def old_server(web: Web, pieces: Iterable[bytes]) -> None:
    def answer_all(request: ReceivedRequest) -> Answer:
        if request.method == "GET":
            return Answer([b"event: endpoint\ndata: messages\n\n", *pieces], 200, EVENTS)
        return Answer(status=202 if request.path.endswith("/messages") else 405)

    web.answer_all = answer_all


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([b"data: " + b"x" * 60_000] * 4, "larger than this server allows"),
        ([b": ping\n\n" * 5_000] * 20, "larger than this server allows"),
        ([event({"id": number, "method": "ping"}) for number in range(200)], "sends more pings"),
        ([b"data: {}\n\n"], "does not follow the protocol"),
    ],
    ids=["line", "comments", "pings", "no message"],
)
async def test_mcp_flood_over_sse_transport_fails_the_request(web: Web, pieces: list[bytes], message: str) -> None:
    old_server(web, pieces)
    session = servers().session(address(web.url("/sse")))
    async with asyncio.timeout(SECONDS):
        error = await failure(session.list_tools())
    assert message in error["message"]
    await end(session)
