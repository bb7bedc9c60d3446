"""The bound on the lists of all MCP servers of one response together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from ...core.shapes import DEFAULT_LIMITS
from .servers import McpError

_MAX_CONCURRENT_LISTS: Final = 4
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
        slots: one is held while a list is read.
    """

    def __init__(self, bounds: ServerBounds) -> None:
        self.slots = asyncio.Semaphore(_MAX_CONCURRENT_LISTS)
        self._bytes = bounds.list_bytes
        self._tools = DEFAULT_LIMITS.max_listed_tools

    def take(self, tools: int) -> int:
        """Count tools of a list in the conversation, as far as there is room; return how many were counted."""
        taken = min(tools, self._tools)
        self._tools -= taken
        return taken

    def spend(self, tools: int, size: int) -> None:
        """Count a part of a list.

        Raises:
            McpError: the lists are too large together.
        """
        self._tools -= tools
        self._bytes -= size
        if self._tools < 0 or self._bytes < 0:
            message = "The MCP servers of this response list more tools together than this server allows."
            raise McpError({"type": "http_error", "code": 502, "message": message})


class HasList:
    """A tool whose functions are those that a server lists."""

    budget: ListBudget
