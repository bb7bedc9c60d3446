"""Sessions with real and hostile MCP servers, with the host's version of the `mcp` package."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from ipaddress import ip_network
from threading import Event
from typing import Any, Final

import pytest

from llama_stack_responses.fetch.address_policy import AddressPolicy
from llama_stack_responses.tools.mcp.incoming_messages import IncomingLimits
from llama_stack_responses.tools.mcp.servers import McpAddress, McpError
from llama_stack_responses.tools.mcp.sessions import McpClient, McpClientSession, SessionLimits
from tests.support.hostile_mcp import HostileMcpServer, Method, events, json_answer
from tests.support.mcp_server import McpServers
from tests.support.reservations import unlimited
from tests.support.waiting import until, wait_until
from tests.support.web import Answer, ReceivedRequest, Web

type Json = dict[str, Any]

# No stack is started. The tests run on both hosts because each has its own version of the `mcp` package.
pytestmark = pytest.mark.live

INCOMING: Final = IncomingLimits(answer_bytes=100_000, answer_values=1_000, session_bytes=400_000)
LIMITS: Final = SessionLimits(60.0, INCOMING)
TOKEN: Final = {"Authorization": "Bearer bearer-canary-1"}


class NoConnectors:
    """A stack without connectors, or with one."""

    def __init__(self, url: str | None = None) -> None:
        self._url = url

    async def url(self, connector_id: str) -> str | None:
        """Return the URL of the connector."""
        return self._url


def address(url: str, **headers: str) -> McpAddress:
    return McpAddress("s", url, None, headers)


def servers(limits: SessionLimits = LIMITS, connector: str | None = None, *, allowed: bool = True) -> McpClient:
    networks = [ip_network("127.0.0.0/8")] if allowed else []
    return McpClient(AddressPolicy(networks), NoConnectors(connector), limits, unlimited)


async def nowhere(host: str, port: int) -> list[str]:
    raise socket.gaierror


@pytest.fixture
def hostile(web: Web) -> HostileMcpServer:
    """A server with scripted answers."""
    return HostileMcpServer(web)


@pytest.fixture
async def session(hostile: HostileMcpServer) -> AsyncIterator[McpClientSession]:
    """A session with the scripted server."""
    created = servers().session(address(hostile.web.url("/secret-canary/mcp?key=query-canary"), **TOKEN))
    yield created
    await end(created)


async def end(session: McpClientSession) -> None:
    """End a session, and wait until the package has closed its connections."""
    session.release()
    if lines := session._servers._lines:
        await asyncio.wait(lines)


async def failure(work: Any) -> Json:
    """Return the error that the call raises."""
    with pytest.raises(McpError) as caught:
        await work
    assert "canary" not in str(caught.value.error)
    return caught.value.error


def call(session: McpClientSession) -> Any:
    return session.call_tool("add", {})


# Real servers


@pytest.mark.parametrize("path", ["mcp", "sse", "locked/mcp"])
async def test_real_mcp_server_lists_and_calls_tools(mcp: McpServers, path: str) -> None:
    session = servers().session(address(mcp.url(path), Authorization=f"Bearer {mcp.token}"))
    tools = await session.list_tools()
    assert [(tool["name"], tool["description"]) for tool in tools][:2] == [
        ("echo", "Says it again."),
        ("add", "Adds two numbers."),
    ]
    assert (tools[0]["annotations"]["readOnlyHint"], "annotations" in tools[1]) == (True, False)
    results = await asyncio.gather(*(session.call_tool("echo", {"text": str(number)}) for number in range(5)))
    assert [result["content"][0]["text"] for result in results] == ["0", "1", "2", "3", "4"]
    failed = await session.call_tool("fail", {"reason": "No."})
    assert (failed["isError"], "No." in failed["content"][0]["text"]) == (True, True)
    await end(session)


async def test_timeout_of_mcp_call_keeps_the_session(mcp: McpServers) -> None:
    session, before = servers().session(address(mcp.url())), mcp.held("hold")
    call = asyncio.create_task(session.call_tool("hold", {"word": "a"}))
    await until(lambda: mcp.held("hold") > before)
    call.cancel()  # as a timeout does
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await session.call_tool("echo", {"text": "b"}))["content"][0]["text"] == "b"
    mcp.release()
    await end(session)


async def test_mcp_connector_at_private_address_is_reached(mcp: McpServers) -> None:
    session = servers(connector=mcp.url(), allowed=False).session(McpAddress("s", None, "tools", {}))
    assert len(await session.list_tools()) == 8
    await end(session)
    error = await failure(servers().session(McpAddress("s", None, "tools", {})).list_tools())
    assert error["message"] == "This stack has no connector 'tools'."


async def test_mcp_session_with_private_address_is_refused(mcp: McpServers) -> None:
    error = await failure(servers(allowed=False).session(address(mcp.url())).list_tools())
    assert (error["code"], "no public address" in error["message"]) == (502, True)


# The session


async def test_one_mcp_session_serves_all_calls_and_is_deleted(
    hostile: HostileMcpServer, session: McpClientSession
) -> None:
    await session.list_tools()
    await asyncio.gather(call(session), call(session))
    await call(session)
    assert hostile.methods.count("initialize") == 1
    session.release()
    await asyncio.to_thread(wait_until, lambda: any(request.method == "DELETE" for request in hostile.web.seen))
    assert {request.headers["authorization"] for request in hostile.web.seen} == {"Bearer bearer-canary-1"}
    assert {(request.path, request.query["key"]) for request in hostile.web.seen} == {
        ("/secret-canary/mcp", "query-canary")
    }


async def test_mcp_tool_list_reads_all_pages(hostile: HostileMcpServer, session: McpClientSession) -> None:
    def page(request: Json) -> Json:
        number = int((request.get("params") or {}).get("cursor") or 0)
        more = {"nextCursor": str(number + 1)} if number < 2 else {}
        return {"tools": [{"name": f"t{number}", "inputSchema": {"type": "object"}}], **more}

    hostile.answers["tools/list"] = page
    assert [tool["name"] for tool in await session.list_tools()] == ["t0", "t1", "t2"]


@pytest.mark.parametrize("tools", [0, 100])
async def test_endless_mcp_tool_list_is_refused(
    hostile: HostileMcpServer, session: McpClientSession, tools: int
) -> None:
    page = {"tools": [{"name": "add", "inputSchema": {"type": "object"}}] * tools, "nextCursor": "again"}
    hostile.answers["tools/list"] = lambda _: page
    error = await failure(session.list_tools())
    assert error["message"] == "The server lists more tools than this server allows."


async def test_mcp_session_lost_by_the_server_is_initialized_again(
    hostile: HostileMcpServer, session: McpClientSession
) -> None:
    await call(session)
    usual = hostile.answers["tools/call"]
    gone = {"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32600, "message": "Session not found"}}

    def once(request: Json) -> Answer:
        hostile.answers["tools/call"] = usual
        return json_answer(gone, 404)

    hostile.answers["tools/call"] = once
    assert (await call(session))["content"][0]["text"] == "3"
    assert hostile.methods.count("initialize") == 2


async def test_mcp_server_error_keeps_the_session(hostile: HostileMcpServer, session: McpClientSession) -> None:
    await session.list_tools()
    usual = hostile.answers["tools/call"]
    hostile.answers["tools/call"] = lambda _: Answer(b"Oops.", 500)
    assert await failure(call(session)) == {
        "type": "http_error",
        "code": 500,
        "message": "The server answered 500 Internal Server Error.",
    }
    hostile.answers["tools/call"] = usual
    await call(session)
    assert hostile.methods.count("initialize") == 1


# Answers of servers


def echo_headers(request: Json) -> Answer:
    error = {"code": -32001, "message": "I was sent bearer-canary-1, which is no good."}
    return json_answer({"jsonrpc": "2.0", "id": request["id"], "error": error})


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (
            lambda request: json_answer(
                {"jsonrpc": "2.0", "id": request["id"], "error": {"code": 7, "message": "No."}}
            ),
            7,
            "No.",
        ),
        (echo_headers, -32001, "I was sent ***, which is no good."),
        (lambda _: json_answer({"error": {"code": 1, "message": "Wait."}}, 429), 429, "Wait."),
        (lambda _: Answer(b"", 403), 403, "The server answered 403 Forbidden."),
        (
            lambda _: Answer(b"", 307, {"location": "http://127.0.0.2/canary"}),
            307,
            "The server redirects to another one. Use the address that it redirects to.",
        ),
        (lambda _: Answer(b"x" * 200_000, 200, {"content-type": "application/json"}), 502, "is larger than"),
        (
            lambda _: Answer(b"x", 200, {"content-type": "application/json", "content-encoding": "gzip"}),
            502,
            "The server compressed its answer, which was not requested.",
        ),
        (
            lambda _: Answer([b"{"], 200, {"content-type": "application/json", "content-length": "100"}),
            502,
            "The connection to the server broke",
        ),
        (
            lambda request: json_answer({"jsonrpc": "2.0", "id": request["id"], "result": {"content": "text"}}),
            -32603,
            "The server's answer does not follow the protocol.",
        ),
        (lambda _: json_answer([]), 502, "The server's answer does not follow the protocol."),
        (lambda _: json_answer({"jsonrpc": "2.0", "id": "other", "result": {}}), 502, "does not follow the protocol."),
        (lambda _: events(b": nothing"), 502, "The server did not answer."),
        (lambda _: events(b"x" * 200_000), 502, "is larger than"),
    ],
    ids=[
        *("error", "secret", "status with error", "status", "redirect", "large", "gzip", "broken", "odd", "list"),
        *("other", "no event", "large events"),
    ],
)
async def test_invalid_mcp_answer_is_an_error(
    hostile: HostileMcpServer, session: McpClientSession, answer: Method, kind: int, message: str
) -> None:
    await session.list_tools()
    hostile.answers["tools/call"] = answer
    error = await failure(call(session))
    assert (error["code"], message in error["message"]) == (kind, True), error
    assert error["type"] == ("http_error" if kind >= 100 else "mcp_protocol_error")


async def test_mcp_redirect_within_the_server_is_followed(hostile: HostileMcpServer, session: McpClientSession) -> None:
    usual = hostile.web.answer_all
    assert usual

    def moved(request: ReceivedRequest) -> Answer:
        elsewhere = hostile.web.url("/moved")
        return usual(request) if request.path == "/moved" else Answer(status=307, headers={"location": elsewhere})

    hostile.web.answer_all = moved
    assert (await call(session))["content"][0]["text"] == "3"


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
async def test_silent_mcp_server_is_504(hostile: HostileMcpServer, method: str) -> None:
    never = Event()
    hostile.answers[method] = lambda _: Answer([never], 200, {"content-type": "application/json"})
    session = servers(SessionLimits(0.3, INCOMING)).session(address(hostile.web.url("/mcp")))
    error = await failure(session.list_tools())
    never.set()
    assert (error["type"], error["code"]) == ("http_error", 504)
    await end(session)


async def test_unreachable_and_unknown_mcp_servers_are_502() -> None:
    error = await failure(servers().session(address("http://127.0.0.1:1/mcp")).list_tools())
    assert (error["code"], error["message"]) == (502, "The server could not be reached (ConnectError).")
    session = McpClient(AddressPolicy(resolve=nowhere), NoConnectors(), LIMITS, unlimited).session(
        address("http://nowhere.example/mcp")
    )
    error = await failure(session.list_tools())
    assert "was not found" in error["message"]


# SSE


def old_server(web: Web, message: Callable[[ReceivedRequest], Answer]) -> None:
    """Serve the SSE transport only, with this answer to posted messages."""

    def answer(request: ReceivedRequest) -> Answer:
        if request.method == "GET":
            opening = b"event: endpoint\ndata: messages?session_id=1\n\n"
            return Answer([opening, Event()], 200, {"content-type": "text/event-stream"})
        return message(request) if request.path.endswith("/messages") else Answer(status=405)

    web.answer_all = answer


async def test_mcp_sse_server_error_on_a_message_is_reported(web: Web) -> None:
    old_server(web, lambda _: Answer(status=500))
    session = servers().session(address(web.url("/canary/sse")))
    error = await failure(session.list_tools())
    assert (error["code"], error["message"]) == (500, "The server answered 500 Internal Server Error.")
    assert web.seen[-1].path == "/canary/messages"
    await end(session)


async def test_mcp_server_without_any_transport_is_an_error(web: Web) -> None:
    web.answer_all = lambda request: Answer(status=405 if request.method == "POST" else 404)
    session = servers().session(address(web.url("/")))
    assert (await failure(session.list_tools()))["code"] == 405
    await end(session)


@pytest.mark.parametrize(("status", "reason"), [(401, "Unauthorized"), (403, "Forbidden")])
async def test_mcp_rejected_credentials_are_reported_instead_of_the_transport_error(
    web: Web, status: int, reason: str
) -> None:
    web.answer_all = lambda request: Answer(status=405 if request.method == "POST" else status)
    session = servers().session(address(web.url("/")))
    error = await failure(session.list_tools())
    assert (error["type"], error["code"]) == ("http_error", status)
    assert error["message"] == (
        f"The server answered {status} {reason}. "
        "Send valid credentials in the 'authorization' or the 'headers' of the MCP tool."
    )
    await end(session)


# Logs


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log lines at a server's log level."""
    with caplog.at_level(logging.INFO):
        yield caplog


async def test_mcp_credentials_and_urls_are_not_logged(
    hostile: HostileMcpServer, session: McpClientSession, logged: pytest.LogCaptureFixture
) -> None:
    await session.list_tools()
    for answer in (lambda _: Answer(status=500), lambda _: Answer(status=401), lambda _: json_answer([])):
        hostile.answers["tools/call"] = answer
        with pytest.raises(McpError):
            async with asyncio.timeout(60):
                await call(session)
    old_server(hostile.web, lambda _: Answer(status=500))
    await failure(servers().session(address(hostile.web.url("/canary/sse?key=canary"))).list_tools())
    assert logged.records
    assert "canary" not in logged.text
