"""Read the records that entries of a list share once each, and no more than a page holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from ..core.types import Json
from ..items.registry import ANSWERED
from ..stream.call_kinds import FORMS
from . import item_ids
from .conversation_store import without_stand_in
from .decoder import Decoder
from .history_nodes import Node, node_of
from .layout import HistoryName, split_name
from .records import Record, Records, bytes_of

_GENERATED: Final = (FORMS.keys() | {"reasoning"}) - ANSWERED.keys()
"""Types of items that a model produces, except messages."""


class SharedContent:
    """Records that entries of a list need, each read once. Records of later entries are read ahead, within the limit.

    Args:
        max_bytes: bytes that are read, and decoded, at a time.
        hold: called with the bytes of what is read before it is decoded; it may raise.
    """

    def __init__(
        self, records: Records, decoder: Decoder, max_bytes: int, hold: Callable[[int], object] | None = None
    ) -> None:
        self._records = records
        self._decoder = decoder
        self._max_bytes = max_bytes
        self._hold = hold
        self._known: dict[str, tuple[Record, Any, int]] = {}
        self._gone: set[str] = set()

    async def get(self, keys: Collection[str], ahead: Iterable[str] = ()) -> Mapping[str, tuple[Record, Any, int]]:
        """Return the records with these keys that exist, each with its decoded value and its size.

        Args:
            ahead: the keys that will be requested next, in order.
        """
        while waiting := [key for key in keys if key not in self._known and key not in self._gone]:
            further = (key for key in ahead if key not in self._known and key not in self._gone)
            await self._read(list(dict.fromkeys([*waiting, *further])))
        return {key: self._known[key] for key in keys if key in self._known}

    async def node(self, name: str, ahead: Iterable[str] = ()) -> tuple[Node | None, int]:
        """Return the node with this name and its size; None and 0 if it is gone. `ahead`: the nodes needed next."""
        values = await self.get([f"n/{name}"], (f"n/{each}" for each in ahead))
        return (self.known_node(name), values[f"n/{name}"][2]) if values else (None, 0)

    def known_node(self, name: str) -> Node | None:
        """Return the node with this name if it was already read."""
        if known := self._known.get(f"n/{name}"):
            return node_of(known[0].value, known[1])
        return None

    async def _read(self, keys: Sequence[str]) -> None:
        values, seen = await first_decoded(self._records, self._decoder, keys, self._max_bytes, self._hold)
        self._known |= values
        self._gone |= set(keys[:seen]) - values.keys()


async def first_decoded(
    records: Records,
    decoder: Decoder,
    keys: Sequence[str],
    max_bytes: int,
    hold: Callable[[int], object] | None = None,
) -> tuple[dict[str, tuple[Record, Any, int]], int]:
    """Read and decode the records with these keys until they reach `max_bytes`.

    Args:
        hold: called with the bytes of the records before they are decoded; it may raise.

    Returns:
        The decoded records by key, and for how many of `keys` they are complete.
    """

    async def read() -> Mapping[str, Record]:
        return await records.get_many(keys, max_bytes=max_bytes)

    read_records, values = await decoder.read_until(
        read, lambda records: [records[key].value for key in keys if key in records], max_bytes, hold
    )
    there = [key for key in keys if key in read_records]
    values_by_key = {key: (read_records[key], value, size) for key, (value, size) in zip(there, values, strict=False)}
    cut = len(values_by_key) < len(there) or bytes_of(read_records.values()) >= max_bytes
    return values_by_key, keys.index(there[len(values_by_key) - 1]) + 1 if cut else len(keys)


async def own_inputs(shared: SharedContent, names: Sequence[str | None], max_bytes: int) -> list[list[Json]]:
    """Return each history's items that follow the last item that a model generated; an empty list if they are gone.

    Args:
        names: the names of the histories after the inputs.
        max_bytes: the answer ends once the histories reach this many bytes.
    """
    ends = [split_name(name) if name else HistoryName("", 0, None) for name in names]
    inputs: list[list[Json]] = []
    left = max_bytes
    for number, (name, outputs, ids) in enumerate(ends):
        if left <= 0:
            break
        node, size = await shared.node(name, (each.node for each in ends[number:] if each.node)) if name else (None, 0)
        # The input precedes the output in the same node, or is in a separate node: the parent of the output's.
        parent = _parent(node, outputs)
        if parent:
            known = [_parent(shared.known_node(each.node), each.behind) for each in ends[number:] if each.node]
            node, size = await shared.node(parent, filter(None, known))
        id_node, more = await shared.node(ids, (each.ids for each in ends[number:] if each.ids)) if ids else (None, 0)
        # An input that was stored before its output may have got its ids before too.
        earlier, less = await shared.node(id_node.parent) if parent and id_node and id_node.parent else (None, 0)
        left -= size + more + less
        behind = {parent: 0, name: outputs} if parent else {name: 0}
        items = _with_ids(node, id_node, earlier, behind) if node and id_node else _items_of(node)
        inputs.append(given_items(items if parent else items[: len(items) - outputs]))
    return inputs


def _parent(node: Node | None, outputs: int) -> str | None:
    """Return the name of the parent, which holds the input, if this node holds only output."""
    return node.parent if node and len(node.items) <= outputs else None


def _items_of(node: Node | None) -> Sequence[Json]:
    return node.items if node else ()


def _with_ids(node: Node, id_node: Node, earlier: Node | None, behind: Mapping[str, int]) -> Sequence[Json]:
    """Return the items of a history's last node with input, with their own ids.

    Args:
        id_node: the node with the ids of the history's last items.
        earlier: the node with the ids of items before these, if it is needed.
        behind: the names of the nodes that may end with these ids, and the number of items of that node behind `node`.
    """
    name, end = item_ids.end_of(id_node)
    if name not in behind:
        return node.items
    nodes = [earlier, id_node] if earlier else [id_node]
    return item_ids.with_own_ids(node.items, nodes, end - behind[name] - len(node.items))


def given_items(items: Sequence[Json]) -> list[Json]:
    """Return the items that follow the last item that a model generated."""
    own = list(without_stand_in(items))
    generated = [
        index for index, item in enumerate(own) if item.get("role") == "assistant" or item["type"] in _GENERATED
    ]
    return own[generated[-1] + 1 :] if generated else own
