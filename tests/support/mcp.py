"""MCP servers in this process that do what they are told.

servers = FakeMcp(tool("add"), tool("read", read_only=True), answers={"add": [said("3"), McpError(...)]})
makers = {"mcp": servers.make}
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from llama_stack_responses.core.mcp import Approval
from llama_stack_responses.core.schema.request import CreateRequest
from llama_stack_responses.tools.mcp.servers import McpAddress, McpError
from llama_stack_responses.tools.mcp.tool import McpTool

type Json = dict[str, Any]
type Answer = Json | McpError | asyncio.Event


def tool(name: str, *, read_only: bool = False, **more: Any) -> Json:
    """A tool as a server lists it."""
    hints = {"annotations": {"readOnlyHint": True}} if read_only else {}
    return {"name": name, "inputSchema": {"type": "object"}, **hints, **more}


def said(text: str, **more: Any) -> Json:
    """What came of a call: a text."""
    return {"content": [{"type": "text", "text": text}], **more}


class FakeMcp:
    """A server, the same at each address.

    Args:
        tools: what it has; an error says that it does not tell, an event is waited for.
        answers: of each tool, in the order of its calls; an event is waited for before the next one is given.
        repeatable: what the operator says may be run twice.
        require_approval: what the operator says of requests that do not say.

    Attributes:
        opened: the addresses of all sessions.
        listed: how often it was asked for its tools.
        ran: all calls.
        open: sessions that were not released.
        begun: can be acquired once for each call that began.
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
        """The tool, for an entry of a request."""
        return McpTool(declared, request, self)

    def session(self, address: McpAddress) -> "FakeSession":
        """A session of one response's own."""
        self.opened.append(address)
        self.open += 1
        return FakeSession(self)


class FakeSession:
    """One response's session."""

    def __init__(self, server: FakeMcp) -> None:
        self._server = server

    async def list_tools(self) -> list[Json]:
        """All tools."""
        self._server.listed += 1
        tools: list[Json] = []
        for each in self._server.tools:
            if isinstance(each, McpError):
                raise each
            if isinstance(each, asyncio.Event):
                await each.wait()
            else:
                tools.append(each)
        return tools

    async def call_tool(self, name: str, arguments: Json) -> Json:
        """The next answer."""
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
        """Ends it."""
        self._server.open -= 1
