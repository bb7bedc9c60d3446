"""Unique names for the functions of all tools."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from ..core.types import Json
from .chat_names import free_name
from .choice_handles import handle_of
from .tool import Tool
from .tool_function import Function

_NAMING: Final = ("type", "server_label", "namespace", "name")
"""The fields of an entry of a `tool_choice` that say which tools it refers to."""


class FunctionNames:
    """The functions of a list of tools, each under a unique name for the model.

    Names that clients gave stay unchanged. Any other function whose name is taken gets a similar one. If a client uses
    the same name twice, the first function counts.

    Attributes:
        functions: functions by their name for the model, in the order of the tools.
        names: names for the model, by namespace (if any) and the name that the client uses.
    """

    __slots__ = ("_name_of", "_numbers", "_tools", "functions", "names")

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.functions: dict[str, Function] = {}
        self.names: dict[tuple[str | None, str], str] = {}
        self._tools = tools
        self._name_of: dict[tuple[int, str], str] = {}
        self._numbers: dict[str, int] = {}
        every = [(number, each) for number, tool in enumerate(tools) for each in tool.functions()]
        client_names = {each.name for _, each in every if _is_named_by_client(each)}
        for number, each in every:
            if each.origin is None or each.origin not in self.names:
                self._add(number, each, client_names)

    def chosen(self, entries: Iterable[Json]) -> Collection[str]:
        """Return the names of the functions that entries of a `tool_choice` refer to."""
        meant: dict[str, list[tuple[int, Tool]]] = {}
        for number, tool in enumerate(self._tools):
            for handle in tool.handles():
                meant.setdefault(handle, []).append((number, tool))
        # Thousands of entries may name the same thing.
        distinct = {tuple(entry.get(name) for name in _NAMING): entry for entry in entries}
        return [
            self._name_of[number, name]
            for entry in distinct.values()
            for number, tool in meant.get(handle_of(entry), ())
            for name in tool.chosen(entry)
            if (number, name) in self._name_of
        ]

    def name_of(self, number: int, name: str) -> str:
        """Return the model's name of the function that the tool at index `number` calls `name`."""
        return self._name_of[number, name]

    def _add(self, number: int, function: Function, client_names: set[str]) -> None:
        name = function.name
        if not _is_named_by_client(function):
            name = free_name(name, client_names, self._numbers)
            client_names.add(name)
        self.functions[name] = function if name == function.name else function.renamed(name)
        self._name_of[number, function.name] = name
        if function.origin:
            self.names[function.origin] = name


NO_FUNCTIONS: Final = FunctionNames(())
"""Those of a response without tools. They never change."""


def _is_named_by_client(function: Function) -> bool:
    return function.origin is not None and function.origin[0] is None
