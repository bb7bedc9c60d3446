"""Custom tools: run by the client. Their input is free text or text that matches a grammar."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...core.types import Json
from ...requests.request import CreateRequest
from ...stream.call_kinds import CUSTOM
from ..function_names import chat_name
from ..tool import handle
from ..tool_function import Function
from .function import declared_function, is_chosen


class CustomTool:
    """A `{type: custom, name, description, format}` tool of the request."""

    def __init__(self, declared: Json, _: CreateRequest) -> None:
        self._name: str = declared["name"]
        self._functions = (client_custom(declared),)

    def functions(self) -> Sequence[Function]:
        """Return the single function."""
        return self._functions

    def handles(self) -> Collection[str]:
        """Return the handle of its name."""
        return (handle("custom", self._name),)

    def chosen(self, choice: Json) -> Collection[str]:
        """Return the function if the choice names it."""
        return [self._name] if is_chosen(choice, "custom", self._name) else []


def client_custom(declared: Json, namespace: str | None = None) -> Function:
    """Convert a custom tool of `tools` or of a namespace to a function of type `custom` in the Chat Completions API."""
    name: str = declared["name"]
    custom: Json = {"name": chat_name(namespace, name)}
    if "description" in declared:
        custom["description"] = declared["description"]
    form = declared.get("format") or {"type": "text"}
    if form["type"] == "grammar":
        grammar = {"syntax": form["syntax"], "definition": form["definition"]}
        custom["format"] = {"type": "grammar", "grammar": grammar}
    return declared_function(declared, {"type": "custom", "custom": custom}, CUSTOM, namespace)
