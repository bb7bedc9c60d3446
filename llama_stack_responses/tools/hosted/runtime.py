"""The interface of the stack's tool runtimes for hosted tools."""

from __future__ import annotations

from typing import Protocol

from ...core.types import Json
from ..tool_function import ToolError


class ToolRuntime(Protocol):
    """The tools of the stack's tool runtimes."""

    async def has(self, name: str) -> bool:
        """Whether a tool of this name exists."""
        ...

    async def invoke(self, name: str, arguments: Json) -> str:
        """Call a tool and return its result as text.

        Raises:
            ToolError: the call failed.
        """
        ...


class NoToolRuntime:
    """The tool runtime of a stack that has none."""

    async def has(self, name: str) -> bool:  # noqa: ARG002 (no tool exists)
        """Return False."""
        return False

    async def invoke(self, name: str, arguments: Json) -> str:  # noqa: ARG002
        """Raise `ToolError`."""
        raise ToolError(f"This stack has no tool '{name}'.")
