"""What the loop needs of a tool."""

from __future__ import annotations

from typing import Any, Protocol

from llama_stack_responses.core.calls import CallKind


class Tool(Protocol):
    """A tool of one request, as the model and the client see it.

    Attributes:
        name: the name by which the model calls it.
        call_kind: how a call of it looks to the client, who runs it.
    """

    @property
    def name(self) -> str: ...

    @property
    def call_kind(self) -> CallKind: ...

    def chat_function(self) -> dict[str, Any]:
        """The tool as a chat request's `tools` entry."""
        ...
