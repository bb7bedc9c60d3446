"""What the MCP tool needs of whoever speaks with MCP servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from llama_stack_responses.core.mcp import Approval

Json = dict[str, Any]


class McpError(Exception):
    """A server that did not do what it was asked to.

    Args:
        error: as an `mcp_call` item has it: `{type: http_error | mcp_protocol_error, code, message}`.
    """

    def __init__(self, error: Json) -> None:
        super().__init__(error["message"])
        self.error = error


@dataclass(frozen=True, slots=True)
class McpAddress:
    """Which server, and what opens it.

    Attributes:
        server_label: what the request calls it.
        url: where it is; None for a connector.
        connector_id: the host's name for it.
        headers: what is sent along with each request: secrets.
    """

    server_label: str
    url: str | None
    connector_id: str | None
    headers: dict[str, str] = field(default_factory=dict, repr=False)


class McpSession(Protocol):
    """A server's tools for one response. It connects when it is first used, and again when the connection broke."""

    async def list_tools(self) -> list[Json]:
        """All its tools, each as MCP's `Tool`.

        Raises:
            McpError: it cannot be reached, or does not say.
        """
        ...

    async def call_tool(self, name: str, arguments: Json) -> Json:
        """What came of a call, as MCP's `CallToolResult`.

        Raises:
            McpError: the server could not be asked, or refused.
        """
        ...

    def release(self) -> None:
        """Ends the session, soon."""
        ...


class McpServers(Protocol):
    """Opens sessions."""

    @property
    def repeatable(self) -> Sequence[str]:
        """The calls that may be run twice, whatever the server says of them: shell-style patterns on `label/tool`."""
        ...

    @property
    def require_approval(self) -> Approval:
        """Whether calls need the client's approval where a request does not say."""
        ...

    def session(self, address: McpAddress) -> McpSession:
        """A session of one response's own, not yet connected."""
        ...
