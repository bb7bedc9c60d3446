"""Scripted MCP servers in this process.

servers = FakeMcp(tool("add"), tool("read", read_only=True), answers={"add": [said("3"), McpError(...)]})
makers = {"mcp": servers.make}
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from llama_stack_responses.items.mcp_approvals import Approval
from llama_stack_responses.requests.request import CreateRequest
from llama_stack_responses.tools.mcp.servers import Counted, McpAddress, McpError
from llama_stack_responses.tools.mcp.tool import McpTool

type Json = dict[str, Any]
type Answer = Json | McpError | asyncio.Event


def tool(name: str, *, read_only: bool = False, **more: Any) -> Json:
    """Return a tool as a server lists it."""
    hints = {"annotations": {"readOnlyHint": True}} if read_only else {}
    return {"name": name, "inputSchema": {"type": "object"}, **hints, **more}


def text_result(text: str, **more: Any) -> Json:
    """Return the result of a call: a text."""
    return {"content": [{"type": "text", "text": text}], **more}


class FakeMcp:
    """A server, the same at every address.

    Args:
        tools: its tools; an error fails the listing, an event is awaited.
        answers: answers of each tool, in the order of its calls; an event is awaited before the next answer.
        repeatable: the operator's patterns of repeatable calls.
        require_approval: the operator's default for approval.

    Attributes:
        opened: addresses of all sessions.
        listed: number of listings.
        ran: all calls.
        open: number of sessions not released.
        begun: a semaphore released once per started call.
    """

    def __init__(
        self,
        *tools: Json | McpError | asyncio.Event,
        answers: Mapping[str, Sequence[Answer]] | None = None,
        repeatable: Sequence[str] = (),
        require_approval: Approval = "always",
    ) -> None:
        self.repeatable = repeatable
        self.require_approval: Approval = require_approval
        self.opened: list[McpAddress] = []
        self.listed = 0
        self.ran: list[tuple[str, Json]] = []
        self.open = 0
        self.begun = asyncio.Semaphore(0)
        self.tools = tools
        self.answers = {name: list(each) for name, each in (answers or {}).items()}

    def make(self, declared: Json, request: CreateRequest) -> McpTool:
        """Create the tool for an entry of a request."""
        return McpTool(declared, request, self)

    def session(self, address: McpAddress) -> "FakeSession":
        """Create a session for one response."""
        self.opened.append(address)
        self.open += 1
        return FakeSession(self)


class FakeSession:
    """The session of one response."""

    def __init__(self, server: FakeMcp) -> None:
        self._server = server

    async def list_tools(self, counted: Counted) -> list[Json]:
        """Return all tools."""
        self._server.listed += 1
        tools: list[Json] = []
        for each in self._server.tools:
            if isinstance(each, McpError):
                raise each
            if isinstance(each, asyncio.Event):
                await each.wait()
            else:
                counted(1, len(orjson.dumps(each)))
                tools.append(each)
        return tools

    async def call_tool(self, name: str, arguments: Json) -> Json:
        """Return the next answer."""
        self._server.ran.append((name, arguments))
        self._server.begun.release()
        answer = self._server.answers[name].pop(0)
        while isinstance(answer, asyncio.Event):
            await answer.wait()
            answer = self._server.answers[name].pop(0)
        if isinstance(answer, McpError):
            raise answer
        return answer

    def release(self) -> None:
        """End the session."""
        self._server.open -= 1
