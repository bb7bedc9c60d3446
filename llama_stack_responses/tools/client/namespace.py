"""Namespaces: functions and custom tools of the client's that share a name before their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from llama_stack_responses.core.schema.request import CreateRequest

from ..tool import Function, Json
from .custom import client_custom
from .function import client_function, is_chosen

_MAKERS: Final[Mapping[str, Callable[[Json, str], Function]]] = {
    "function": client_function,
    "custom": client_custom,
}


class NamespaceTool:
    """A `{type: namespace, name, description, tools}` tool of the request.

    The model sees each of its tools under a name made of both; a call carries `namespace` and the bare `name`.
    """

    def __init__(self, declared: Json, _: CreateRequest) -> None:
        self._name: str = declared["name"]
        self._members = [(tool, _MAKERS[tool["type"]](tool, self._name)) for tool in declared["tools"]]

    def functions(self) -> Sequence[Function]:
        """All its tools."""
        return [function for _, function in self._members]

    def chosen(self, choice: Json) -> Collection[str]:
        """A choice of the namespace means all of them."""
        if is_chosen(choice, "namespace", self._name):
            return [function.name for _, function in self._members]
        return [
            function.name
            for tool, function in self._members
            if is_chosen(choice, tool["type"], tool["name"], self._name)
        ]
