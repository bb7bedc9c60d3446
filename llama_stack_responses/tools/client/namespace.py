"""Namespaces: functions and custom tools of the client under a common prefix."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from ...core.types import Json
from ...requests.request import CreateRequest
from ..function_names import free_name
from ..tool import handle
from ..tool_function import Function
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
        # By type and name; the names in a namespace are distinct.
        self._members: dict[tuple[str, str], Function] = {}
        names, numbers = set[str](), dict[str, int]()
        for tool in declared["tools"]:
            member = _MAKERS[tool["type"]](tool, self._name)
            # For the model, `a.b` and `a_b` have one name.
            free = free_name(member.name, names, numbers)
            names.add(free)
            self._members[tool["type"], tool["name"]] = member if free == member.name else member.renamed(free)

    def functions(self) -> Sequence[Function]:
        """Return the functions of all its tools."""
        return list(self._members.values())

    def handles(self) -> Collection[str]:
        """Return the handles of the namespace and of its tools."""
        return {handle("namespace", self._name), *(handle(kind, name) for kind, name in self._members)}

    def chosen(self, choice: Json) -> Collection[str]:
        """Return all functions if the choice names the namespace, otherwise those that it names."""
        if is_chosen(choice, "namespace", self._name):
            return [function.name for function in self._members.values()]
        member = self._members.get((choice["type"], choice["name"]))
        return [member.name] if member and choice.get("namespace", self._name) == self._name else []
