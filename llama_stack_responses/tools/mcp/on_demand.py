"""The MCP servers of a stack. What connects to them is imported for the first request with one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from ...items.mcp_approvals import Approval
from .servers import McpAddress, McpSession, McpSessionFactory


class McpOnDemand:
    """A factory for sessions, whose client is opened with the first one.

    Args:
        opened: opens the client.
        repeatable, require_approval: as for `McpSessionFactory`.
    """

    def __init__(
        self, opened: Callable[[], McpSessionFactory], repeatable: Sequence[str], require_approval: Approval
    ) -> None:
        self._opened = opened
        self.repeatable, self.require_approval = repeatable, require_approval

    def session(self, address: McpAddress) -> McpSession:
        """Create a session for one response, not connected yet."""
        return self._client.session(address)

    @cached_property
    def _client(self) -> McpSessionFactory:
        return self._opened()
