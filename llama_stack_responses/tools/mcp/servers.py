"""The interface of the MCP client for the MCP tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...core.types import Json
from ...items.mcp_approvals import Approval


class McpError(Exception):
    """A failed request to an MCP server.

    Args:
        error: as in an `mcp_call` item: `{type: http_error | mcp_protocol_error, code, message}`.
    """

    def __init__(self, error: Json) -> None:
        super().__init__(error["message"])
        self.error = error


@dataclass(frozen=True, slots=True)
class McpAddress:
    """The address of a server and the headers for it.

    Attributes:
        server_label: its label in the request.
        url: its URL; None for a connector.
        connector_id: the host's name of it.
        headers: headers for each request; they contain secrets.
    """

    server_label: str
    url: str | None
    connector_id: str | None
    headers: dict[str, str] = field(default_factory=dict, repr=False)


Counted = Callable[[int, int], None]
"""`(tools, bytes) -> None` for each part of a list; it raises `McpError` if that is too much."""


class McpSession(Protocol):
    """A session with one server, for one response. It connects on first use, and reconnects after a failure."""

    async def list_tools(self, counted: Counted) -> list[Json]:
        """Return all tools, each as MCP's `Tool`.

        Raises:
            McpError: the server cannot be reached, or returns no list; or `counted` raised it.
        """
        ...

    async def call_tool(self, name: str, arguments: Json) -> Json:
        """Call a tool and return MCP's `CallToolResult`.

        Raises:
            McpError: the server cannot be reached, or returns an error.
        """
        ...

    def release(self) -> None:
        """End the session in the background."""
        ...


class McpSessionFactory(Protocol):
    """Opens sessions with MCP servers, and knows the settings that apply to their calls."""

    @property
    def repeatable(self) -> Sequence[str]:
        """Patterns (shell style, on `label/tool`) of calls that may be repeated even if the server forbids it."""
        ...

    @property
    def require_approval(self) -> Approval:
        """Whether calls need the client's approval if the request does not specify it."""
        ...

    def session(self, address: McpAddress) -> McpSession:
        """Create a session for one response, not connected yet."""
        ...
