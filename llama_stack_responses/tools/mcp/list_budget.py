"""What the MCP servers of one response may list together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from llama_stack_responses.core.errors import bad_request
from llama_stack_responses.tools.mcp.servers import McpError

_MOST_TOOLS: Final = 2_048
"""Maximum tools of all servers of one response. Each becomes a function, and the model gets all of them."""
_AT_ONCE: Final = 4
"""Servers whose lists are read at the same time for one response, since a list is in memory before it is counted."""


@dataclass(frozen=True, slots=True)
class ServerBounds:
    """Bounds on the MCP servers of one response.

    Attributes:
        servers: maximum number.
        list_bytes: maximum size of their lists of tools together, as JSON.
    """

    servers: int = 32
    list_bytes: int = 16 * 2**20


class ListBudget:
    """The budget that one response has left for the lists of its servers.

    Attributes:
        turn: held while a list is read.
    """

    def __init__(self, bounds: ServerBounds) -> None:
        self.turn = asyncio.Semaphore(_AT_ONCE)
        self._most_servers = bounds.servers
        self._bytes = bounds.list_bytes
        self._tools = _MOST_TOOLS

    def share(self, tools: Iterable[object]) -> None:
        """Let the servers among the tools of a response use this budget.

        Raises:
            ApiError: 400, there are too many servers.
        """
        servers = [tool for tool in tools if isinstance(tool, HasList)]
        if len(servers) > self._most_servers:
            message = f"Too many MCP servers: this response has {len(servers)}, and there may be {self._most_servers}."
            raise bad_request(message, "tools")
        for server in servers:
            server.budget = self

    def take(self, tools: int, size: int) -> None:
        """Count a part of a list.

        Raises:
            McpError: the lists are too large together.
        """
        self._tools -= tools
        self._bytes -= size
        if self._tools < 0 or self._bytes < 0:
            message = "The MCP servers of this response list more tools together than this server takes."
            raise McpError({"type": "http_error", "code": 502, "message": message})


@runtime_checkable
class HasList(Protocol):
    """A tool whose functions are those that a server lists."""

    budget: ListBudget
