"""Real MCP servers, built with the `mcp` package: over streamable HTTP, over SSE, and with a bearer token.

    python -m tests.support.mcp_server --port 0 --token T       # prints `listening http://127.0.0.1:PORT`

    servers.url("mcp"), servers.url("sse"), servers.url("locked/mcp")
    servers.calls("add")          # number of calls of that tool
    servers.held("hold")          # number of its calls that have waited
    servers.release()             # releases the waiting calls

It also has `/_seen`, `/_held` and `/_release` for the test.
"""

import argparse
import asyncio
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from sys import executable
from typing import TYPE_CHECKING, Any, Final, Self

import httpx
import orjson
import uvicorn
from mcp.types import ToolAnnotations
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.process import Child

if TYPE_CHECKING or version("mcp").startswith("1."):
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp import Image
    from mcp.server.fastmcp.exceptions import ToolError
else:
    from mcp.server.mcpserver import Image, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

type Json = dict[str, Any]

REPOSITORY = Path(__file__).parents[2]
PIXEL: Final = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0000003010100c9fe92ef"
    "0000000049454e44ae426082"
)
"""A PNG of one red pixel."""
READS: Final = ToolAnnotations(readOnlyHint=True)


class Weather(BaseModel):
    """The result of `weather`."""

    city: str
    degrees: float


class Gate:
    """An event that calls of `hold` wait for.

    Attributes:
        held: number of calls that have waited so far, by tool.
    """

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self._open = asyncio.Event()

    async def passed(self, tool: str) -> None:
        """Wait for the next release."""
        self.held[tool] += 1
        await self._open.wait()

    def release(self) -> None:
        """Release all waiting calls."""
        self._open.set()
        self._open = asyncio.Event()


def server(gate: Gate) -> "MCPServer[Any]":
    """Create a server with its tools."""
    server_ = MCPServer("tools")
    _add_quick_tools(server_)
    _add_slow_tools(server_, gate)
    return server_


def _add_quick_tools(created: "MCPServer[Any]") -> None:
    count = 0

    @created.tool(annotations=READS)
    def echo(text: str) -> str:
        """Says it again."""
        return text

    @created.tool(structured_output=False)
    def add(a: int, b: int) -> str:
        """Adds two numbers."""
        return str(a + b)

    @created.tool()
    def weather(city: str) -> Weather:
        """Says how warm it is."""
        return Weather(city=city, degrees=21.5)

    @created.tool()
    def fail(reason: str) -> str:
        """Fails."""
        raise ToolError(reason)

    @created.tool(structured_output=False)
    def picture() -> list[Any]:
        """Shows a picture."""
        return ["Here it is:", Image(data=PIXEL, format="png")]

    @created.tool()
    def tick() -> str:
        """Counts its own calls."""
        nonlocal count
        count += 1
        return str(count)


def _add_slow_tools(created: "MCPServer[Any]", gate: Gate) -> None:
    @created.tool()
    async def hold(word: str) -> str:
        """Waits until it is let go on."""
        await gate.passed("hold")
        return word

    @created.tool(annotations=READS)
    async def hold_safely(word: str) -> str:
        """Waits until it is let go on, and changes nothing."""
        await gate.passed("hold_safely")
        return word


class TokenMiddleware:
    """Middleware that records requests, and requires the token on locked paths."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.seen: list[Json] = []
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http" or scope["path"].startswith("/_"):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        body = await request.body() if request.method == "POST" else b""
        message = orjson.loads(body) if body else {}
        name = (message.get("params") or {}).get("name")
        self.seen.append(
            {
                "http": request.method,
                "path": scope["path"],
                "method": message.get("method"),
                "name": name,
                "trace": request.headers.get("traceparent"),
                "meta": (message.get("params") or {}).get("_meta"),
            }
        )
        if "locked" in scope["path"] and request.headers.get("authorization") != f"Bearer {self._token}":
            await JSONResponse({"error": "invalid_token"}, 401)(scope, receive, send)
            return
        sent = False

        async def again() -> Any:
            nonlocal sent
            if sent or not body:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)


def application(token: str) -> TokenMiddleware:
    """Create the application of all servers and the test's routes."""
    gate = Gate()
    streamable, locked = (server(gate).streamable_http_app() for _ in range(2))
    sse = server(gate).sse_app()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for app in (streamable, locked):
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    async def seen(_: Request) -> Response:
        return JSONResponse(doorman.seen)

    async def held(_: Request) -> Response:
        return JSONResponse(gate.held)

    async def release(_: Request) -> Response:
        gate.release()
        return JSONResponse({})

    routes = [
        Route("/_seen", seen),
        Route("/_held", held),
        Route("/_release", release, methods=["POST"]),
        Mount("/locked", locked),
        *streamable.routes,
        *sse.routes,
    ]
    doorman = TokenMiddleware(Starlette(routes=routes, lifespan=lifespan), token)
    return doorman


class McpServers:
    """The servers in their own process, for a `with` block.

    Args:
        log: file for their output.
        token: token of the locked server.
    """

    def __init__(self, log: Path, token: str) -> None:
        self.token = token
        self._log = log

    def __enter__(self) -> Self:
        """Start the process and wait until it listens."""
        command = [executable, "-m", "tests.support.mcp_server", "--port", "0", "--token", self.token]
        self._log.write_bytes(b"")
        self._child = Child(command, log=self._log, cwd=REPOSITORY)
        try:
            self.base_url = self._child.wait_ready(self._address, seconds=90, every=0.02)
        except BaseException:
            self._child.kill()
            raise
        self._http = httpx.Client(base_url=self.base_url, timeout=60, trust_env=False, verify=False)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the process."""
        self._http.close()
        self._child.kill()

    def url(self, path: str = "mcp") -> str:
        """Return the URL of a server."""
        return f"{self.base_url}/{path}"

    def seen(self) -> list[Json]:
        """Return the requests so far: `{http, path, method, name, trace, meta}`."""
        found: list[Json] = self._http.get("/_seen").json()
        return found

    def calls(self, name: str) -> int:
        """Return the number of calls of a tool so far."""
        return sum(each["name"] == name for each in self.seen())

    def count_of(self, method: str) -> int:
        """Return the number of requests of a method, such as `tools/list`, so far."""
        return sum(each["method"] == method for each in self.seen())

    def held(self, name: str) -> int:
        """Return the number of a tool's calls that have waited so far; a received call may not wait yet."""
        found: dict[str, int] = self._http.get("/_held").json()
        return found.get(name, 0)

    def release(self) -> None:
        """Release the waiting calls."""
        self._http.post("/_release").raise_for_status()

    def _address(self) -> str | None:
        match = re.search(r"^listening (\S+)$", self._log.read_text(), re.MULTILINE)
        return match and match[1]


def main() -> None:
    """Serve until the process is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token", required=True)
    arguments = parser.parse_args()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", arguments.port))
        listener.listen(128)
        print(f"listening http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        config = uvicorn.Config(application(arguments.token), log_level="warning", timeout_keep_alive=600)
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
