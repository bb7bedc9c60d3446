"""What hosted tools need of the stack's own tool runtime."""

from __future__ import annotations

from typing import Any, Protocol

from ..tool import ToolError

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


class NoToolRuntime:
    """A stack without tool runtimes."""

    async def has(self, name: str) -> bool:  # noqa: ARG002 (there is none of any name)
        """It has none."""
        return False

    async def invoke(self, name: str, arguments: Json) -> str:  # noqa: ARG002
        """Fails: there is nothing to call."""
        raise ToolError(f"This stack has no tool '{name}'.")
