"""The tools that items of a conversation bring, and which of them a response has: the newest, within its limits.

A conversation collects tools over its turns, also of requests that an earlier version accepted. It has to stay
continuable, so tools over a limit are left out. Only those that one new request brings are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from ..core.errors import bad_request
from ..core.shapes import DEFAULT_LIMITS, Check, RequestLimits
from ..core.types import Json
from ..items.registry import ITEM_KINDS
from .declared_tools import NAMED_TOOLS, carried_tools

Origin = tuple[str | None, str]
"""The namespace (if any) and the name by which the client refers to a tool."""

Identity = Origin | bytes
"""What is equal for two entries of the same tool: its origin, or the encoded entry of a tool without a name."""

CARRIER_ITEMS: Final[Mapping[str, Check]] = {
    name: kind.carrier(carried_tools) for name, kind in ITEM_KINDS.items() if kind.carrier
}
"""Checks of the items that bring tools, by type."""

CARRIERS: Final = tuple(CARRIER_ITEMS)

_DECLARING: Final = "additional_tools"
"""The carrier that declares tools. The others have what a search found."""

_SERVER: Final = "mcp"
_SEARCH: Final = "tool_search"

_TOOLS, _UNNAMED, _SERVERS, _SEARCHES = range(4)
"""The limits, by their index in a `ToolRoom`."""


class ToolRoom:
    """How many more tools a response can have.

    Args:
        tools: maximum number of tools; a namespace counts as those in it.
        servers: maximum number of MCP servers.
    """

    __slots__ = ("_left",)

    def __init__(self, tools: int, servers: int) -> None:
        self._left = [tools, DEFAULT_LIMITS.max_unnamed_tools, servers, 1]

    def take(self, entry: Json) -> None:
        """Count a declared tool, whether there is room or not."""
        for _ in identities(entry):
            self._subtract(_counts(entry["type"]))

    def _subtract(self, counts: Iterable[int]) -> None:
        for each in counts:
            self._left[each] -= 1

    def exceeded(self, entries: Iterable[Json], known: Collection[Identity]) -> bool:
        """Return whether different tools of these entries are over a limit, and count them until then.

        The newest `tool_search` replaces the others, so those are not counted.

        Args:
            entries: entries of new items.
            known: the tools that the request declares.
        """
        added = set(known)
        for entry in entries:
            counts = _counts(entry["type"])
            for name in identities(entry):
                if name not in added and _SEARCHES not in counts:
                    added.add(name)
                    self._subtract(counts)
                    if any(self._left[each] < 0 for each in counts):
                        return True
        return False

    def select(self, entries: Sequence[Json], known: Collection[Identity]) -> Selection:
        """Select the tools to add, and count them. There may be a million entries, which mostly repeat each other.

        Args:
            entries: entries of items, the oldest first.
            known: the tools that the response has.
        """
        named: set[Identity] = set()
        selected: set[Identity] = set()
        for entry in reversed(entries):
            counts = _counts(entry["type"])
            for name in identities(entry):
                if name in known:
                    named.add(name)
                elif self._left[_TOOLS] > 0 and name not in selected and all(self._left[each] > 0 for each in counts):
                    self._subtract(counts)
                    selected.add(name)
        return Selection(named | selected, _newest_entries(entries, selected))


@dataclass(frozen=True, slots=True)
class Selection:
    """The tools of items that count.

    Attributes:
        named: those that the response has, or gets with `added`.
        added: entries of the tools to add; a namespace has only the new ones.
    """

    named: Collection[Identity]
    added: Sequence[Json]


def _newest_entries(entries: Sequence[Json], wanted: Collection[Identity]) -> list[Json]:
    """Return an entry of each tool: the newest one, since it replaces the former, in the order of the first ones."""
    newest: dict[Identity, Json] = {}
    for entry in reversed(entries):
        if len(newest) == len(wanted):
            break
        for name, tool in zip(identities(entry), members_of(entry), strict=True):
            if name in wanted:
                newest.setdefault(name, tool)
    found = []
    for entry in entries:
        if not newest:
            break
        tools = [newest.pop(name) for name in identities(entry) if name in newest]
        if tools:
            found.append(with_members(entry, tools))
    return found


def declared_again(items: Iterable[Json]) -> dict[Identity, Json]:
    """Return the newest declaration that items have of each named tool, without its namespace."""
    return {
        name: tool
        for item in items
        if item["type"] == _DECLARING
        for entry in item["tools"]
        for name, tool in zip(identities(entry), members_of(entry), strict=True)
        if isinstance(name, tuple)
    }


def members_of(entry: Json) -> Sequence[Json]:
    """Return the tools of an entry, in the order of their `identities`: those in a namespace, else the entry."""
    return entry["tools"] if entry["type"] == "namespace" else (entry,)


def with_members(entry: Json, tools: Sequence[Json]) -> Json:
    """Return an entry with other tools in place of its `members_of`."""
    return {**entry, "tools": tools} if entry["type"] == "namespace" else tools[0]


def _carried_entries(items: Iterable[Json]) -> list[Json]:
    """Return the entries of the tools in these items."""
    return [tool for item in items if item["type"] in CARRIERS for tool in item["tools"]]


def identities(entry: Json) -> Sequence[Identity]:
    """Return the identities of the tools of an entry."""
    if entry["type"] == "namespace":
        return [(entry["name"], tool["name"]) for tool in entry["tools"]]
    return [(None, entry["name"]) if "name" in entry else orjson.dumps(entry, option=orjson.OPT_SORT_KEYS)]


def _counts(kind: str) -> Sequence[int]:
    """Return the limits that apply to a tool of this type."""
    if kind in NAMED_TOOLS:
        return (_TOOLS, _SERVERS) if kind == _SERVER else (_TOOLS,)
    return (_TOOLS, _UNNAMED, _SEARCHES) if kind == _SEARCH else (_TOOLS, _UNNAMED)


def check_carried(items: Sequence[Json], declared: Sequence[Json], limits: RequestLimits) -> None:
    """Raise a 400 for too many tools in the items of a new request, together with those that it declares.

    Args:
        items: the items of its input.
        declared: its `tools`.
        limits: how much a request may hold.
    """
    entries = _carried_entries(items)
    room = ToolRoom(limits.max_tools, limits.max_mcp_servers)
    for entry in declared:
        room.take(entry)
    if entries and room.exceeded(entries, [name for entry in declared for name in identities(entry)]):
        message = (
            f"The items of 'input' and 'tools' have too many tools together. A response can have {limits.max_tools}: "
            f"at most {limits.max_mcp_servers} MCP servers, and {limits.max_unnamed_tools} without a name of their own."
        )
        raise bad_request(message, "input", "array_above_max_length")
    labels = {tool["server_label"] for tool in (*declared, *entries) if tool["type"] == _SERVER}
    lists = {item["server_label"]: item["tools"] for item in items if item["type"] == "mcp_list_tools"}
    if sum(len(tools) for label, tools in lists.items() if label in labels) > limits.max_listed_tools:
        message = (
            f"The lists of MCP servers' tools in 'input' are too long together: a response can have "
            f"{limits.max_listed_tools} tools of MCP servers."
        )
        raise bad_request(message, "input", "array_above_max_length")
