"""What hosted tools need of the stack's own tool runtime."""

from __future__ import annotations

from typing import Any, Protocol

Json = dict[str, Any]


class ToolRuntime(Protocol):
    """The tools that the stack's tool runtimes have."""

    async def has(self, name: str) -> bool:
        """Whether one of them has a tool of this name."""
        ...

    async def invoke(self, name: str, arguments: Json) -> str:
        """Calls a tool; returns the text of its result.

        Raises:
            ToolError: it did not work out.
        """
        ...
