"""Names of functions for the model: within what chat APIs accept, and unique among all tools."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Sequence
from hashlib import sha256
from typing import Final

from ..core.types import Json
from .tool import Tool, handle_of
from .tool_function import Function

_NAMING: Final = ("type", "server_label", "namespace", "name")
"""The fields of an entry of a `tool_choice` that say which tools it refers to."""

_OTHERS: Final = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_CHARACTERS: Final = 64
"""Maximum length of a function name that every chat API accepts."""
_STEM_CHARACTERS: Final = _NAME_CHARACTERS - 6
"""Characters of a name that stay before any number."""


def chat_name(namespace: str | None, name: str) -> str:
    """Return a function's name for the model: joined with its namespace or, without one, as the client chose it."""
    if namespace is None:
        return name
    joined = _OTHERS.sub("_", f"{namespace}__{name}")
    if len(joined) <= _NAME_CHARACTERS:
        return joined
    # The end of a name is more specific than its beginning, which all names of a namespace share.
    digest = sha256(f"{namespace}/{name}".encode()).hexdigest()[:8]
    return f"{joined[: _NAME_CHARACTERS - 42]}_{digest}_{joined[-32:]}"


def free_name(name: str, names: Container[str], numbers: dict[str, int]) -> str:
    """Return the name, with a number appended if it is taken.

    Args:
        name: the name.
        names: the names that are taken.
        numbers: the last number for each beginning of a name, kept from call to call. Without it, a thousand functions
            of one name would try half a million names.
    """
    free, stem = name, name[:_STEM_CHARACTERS]
    while free in names:
        numbers[stem] = number = numbers.get(stem, 1) + 1
        ending = f"_{number}"
        free = name[: _NAME_CHARACTERS - len(ending)] + ending
    return free


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
