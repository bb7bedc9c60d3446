"""Namespaces: functions and custom tools of the client under a common prefix."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from llama_stack_responses.core.schema.request import CreateRequest

from ...core.types import Json
from ..tool import Function
from .custom import client_custom
from .function import client_function, is_chosen

_MAKERS: Final[Mapping[str, Callable[[Json, str], Function]]] = {
    "function": client_function,
    "custom": client_custom,
}


class NamespaceTool:
    """A `{type: namespace, name, description, tools}` tool of the request.

    The model sees its tools under a joined name; a call item has `namespace` and the bare `name`.
    """

    def __init__(self, declared: Json, _: CreateRequest) -> None:
        self._name: str = declared["name"]
        self._members = [(tool, _MAKERS[tool["type"]](tool, self._name)) for tool in declared["tools"]]

    def functions(self) -> Sequence[Function]:
        """Return the functions of all its tools."""
        return [function for _, function in self._members]

    def chosen(self, choice: Json) -> Collection[str]:
        """Return all functions if the choice names the namespace, otherwise those that it names."""
        if is_chosen(choice, "namespace", self._name):
            return [function.name for _, function in self._members]
        return [
            function.name
            for tool, function in self._members
            if is_chosen(choice, tool["type"], tool["name"], self._name)
        ]
