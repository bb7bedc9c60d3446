"""The tools of one response, and which of the model's calls go through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from llama_stack_responses.core.calls import CallKind, HiddenCall

from .function import FunctionTool
from .tool import Tool

Json = dict[str, Any]

_BY_TYPE: Final[dict[str, Callable[[Json], Tool]]] = {"function": FunctionTool}


class Toolset:
    """The tools that a request declares.

    Args:
        declared: the request's `tools`.
        choice: the request's `tool_choice`; calls that it does not allow do not go through, whatever the model does.
            A tool that is chosen by its name is called once.
        parallel: whether the model may make several calls in one turn; if not, the first one counts.
    """

    def __init__(self, declared: Sequence[Json], choice: str | Json | None, *, parallel: bool) -> None:
        self._tools = {tool.name: tool for tool in (_BY_TYPE[entry["type"]](entry) for entry in declared)}
        self._allowed = _allowed(choice, self._tools)
        by_name = isinstance(choice, dict) and choice["type"] != "allowed_tools"
        self._parallel = parallel and not by_name
        self.shown_calls = 0

    def chat_tools(self) -> list[Json]:
        """The `tools` of a chat request."""
        return [tool.chat_function() for tool in self._tools.values()]

    def kind_of(self, name: str) -> CallKind | None:
        """How a call that the model begins looks to the client; None when it does not go through."""
        if name not in self._allowed or (self.shown_calls and not self._parallel):
            return None
        self.shown_calls += 1
        return self._tools[name].call_kind

    def refusal(self, call: HiddenCall) -> str:
        """What the model is told of a call that did not go through."""
        names = ", ".join(sorted(self._allowed)) or "none"
        if call.name in self._tools:
            return f"The tool '{call.name}' may not be called in this turn. Tools that may be called: {names}."
        return f"There is no tool named '{call.name}'. Tools that may be called: {names}."


def _allowed(choice: str | Json | None, tools: dict[str, Tool]) -> frozenset[str]:
    if choice == "none":
        return frozenset()
    if not isinstance(choice, dict):
        return frozenset(tools)
    named = choice["tools"] if choice["type"] == "allowed_tools" else [choice]
    return frozenset(entry["name"] for entry in named)
