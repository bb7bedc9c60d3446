"""What the model can call: the functions of all tools, each under a name of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from .naming import free_name
from .tool import Function, Json, Tool


class Catalog:
    """The functions of some tools.

    The names that clients gave stay as they are. Where another function has the name of one of those, or of another, it
    gets a name like it. Of two that the client knows by the same name, the first one counts.

    Attributes:
        functions: by the name by which the model calls them, in the order of the tools.
        names: those names, by the namespace, if any, and the name by which the client knows them.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.functions: dict[str, Function] = {}
        self.names: dict[tuple[str | None, str], str] = {}
        self._tools = tools
        self._name_of: dict[tuple[int, str], str] = {}
        every = [(number, each) for number, tool in enumerate(tools) for each in tool.functions()]
        taken = {each.name for _, each in every if _is_named_by_client(each)}
        for number, each in every:
            if each.origin is None or each.origin not in self.names:
                self._add(number, each, taken)

    def chosen(self, entries: Iterable[Json]) -> Collection[str]:
        """The names of the functions that entries of a `tool_choice` mean."""
        meant = [
            (number, name)
            for entry in entries
            for number, tool in enumerate(self._tools)
            for name in tool.chosen(entry)
        ]
        return [self._name_of[each] for each in meant if each in self._name_of]

    def name_of(self, number: int, name: str) -> str:
        """The name by which the model calls the function that the tool at `number` calls `name`."""
        return self._name_of[number, name]

    def _add(self, number: int, function: Function, taken: set[str]) -> None:
        name = function.name
        if not _is_named_by_client(function):
            name = free_name(name, taken)
            taken.add(name)
        self.functions[name] = function if name == function.name else function.renamed(name)
        self._name_of[number, function.name] = name
        if function.origin:
            self.names[function.origin] = name


def _is_named_by_client(function: Function) -> bool:
    return function.origin is not None and function.origin[0] is None
