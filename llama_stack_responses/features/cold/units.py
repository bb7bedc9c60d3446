"""What is packed together: a copy of the records of some responses of a user, and of all that they need.

Packing stores a copy elsewhere and deletes the responses here, as a deletion does; bringing back stores the copy. So
content that other responses share stays with these. The histories of the copy have names of their own: nothing that is
stored meanwhile can be taken for them.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import batched
from typing import Final

from ...concurrency.offloading import in_thread
from ...core.ids import tag_of
from ...core.owner import Owner
from ...store.codec import TooLarge
from ...store.content_names import Hasher
from ...store.decoder import Decoder
from ...store.history_nodes import Node, read_chain
from ...store.item_ids import in_renamed
from ...store.layout import (
    Entry,
    chat_request,
    further_pointer,
    listing,
    pointers,
    read_pointer,
    reference,
)
from ...store.read_allowance import ReadAllowance
from ...store.records import Condition, Delete, Op, Put, Record, Records, VersionIs, after_prefix
from .pack import Rows
from .rows import Place, RecordStub, pointer_stub

UNIT_BYTES: Final = 64 * 2**20
"""Most bytes of the histories of what is packed together, as `codec.size` counts; a response with more stays."""
_READ_KEYS: Final = 500
_SOURCES: Final = 1000
"""References to one piece of content that are read; one with more is in use by others."""

type Pointers = Mapping[str, bytes]
"""Pointers to items that a chain has when it is back, by their keys."""


@dataclass(frozen=True, slots=True)
class Found:
    """The record of a response, and its version."""

    entry: Entry
    version: int


@dataclass(frozen=True, slots=True)
class Unit:
    """What is packed together.

    Attributes:
        owner: the user.
        rows: what is packed.
        orders: the positions of the responses in their owner's list, by their ids.
        stubs: the keys of the pointers that stay as stubs.
        stays: the keys of rows that stay as they are, until the chain is deleted.
        ops: what else packing changes in the store.
        conditions: say that nothing has changed since it was read.
        held: the keys of the responses' references, each with the key of the content.
        tag: that of the responses.
        is_shared: whether other responses continue these or share content with them.
    """

    owner: Owner
    rows: Rows
    orders: Mapping[str, str]
    stubs: Collection[str]
    stays: Collection[str]
    ops: Sequence[Op]
    conditions: Sequence[Condition]
    held: Mapping[str, str]
    tag: int
    is_shared: bool

    @property
    def paged(self) -> list[str]:
        """The keys of the rows that are moved into pages: those that find the responses, and list them."""
        listed = (listing(Hasher(self.owner).owner, order, each) for each, order in self.orders.items())
        return [*(f"r/{each}" for each in self.orders), *self.stubs, *self.stays, *listed]

    def put_stubs(self, place: Place) -> list[Op]:
        """Return the ops that write the stubs."""
        return stub_ops(self.orders, self.stubs, place)


def stub_ops(orders: Mapping[str, str], pointed: Collection[str], place: Place) -> list[Op]:
    """Return the ops that write the stubs of responses, and of the pointers with these keys."""
    records = [RecordStub(place, order).put(response_id) for response_id, order in orders.items()]
    return [*records, *(pointer_stub(key, place) for key in pointed)]


@dataclass(frozen=True, slots=True)
class _Stored:
    """What responses have in the store.

    Attributes:
        nodes: the nodes of their histories, by name.
        shared: the names of those that others share.
        big: the big fields, by key.
        pointed: pointers that may lead to their items, by key.
        requests: recorded chat requests, by key.
    """

    nodes: Mapping[str, Node]
    shared: Collection[str]
    big: Mapping[str, Record]
    pointed: Mapping[str, Record]
    requests: Mapping[str, Record]


class Units:
    """Reads what is packed together.

    Args:
        records: the store.
        decoder: decodes what is read.
    """

    def __init__(self, records: Records, decoder: Decoder) -> None:
        self._records, self._decoder = records, decoder

    async def read(self, responses: Sequence[Found]) -> Unit | None:
        """Return the unit of responses of one owner and tag, oldest first; None if they stay: part of them is gone.

        Raises:
            ApiError: 503, the store does not answer; 500, what is stored is damaged.
        """
        entries = [each.entry for each in responses]
        nodes = await self._nodes(entries)
        fields = {f"b/{name}" for entry in entries for name in entry.fields.values()}
        big = await self._get(fields)
        if nodes is None or len(big) < len(fields):
            return None
        shared = await self._shared(entries, nodes)
        hasher = Hasher(entries[0].owner, tag_of(entries[0].id))
        asked = await in_thread(_pointer_keys, hasher, entries, nodes)
        pointed = await self._get(asked)
        requests = await self._get(
            chat_request(entry.id, number) for entry in entries for number in range(entry.recorded)
        )
        return await in_thread(_unit, responses, _Stored(nodes, shared, big, pointed, requests))

    async def _nodes(self, entries: Sequence[Entry]) -> dict[str, Node] | None:
        """Return all nodes of the histories by name; None if one is gone, or they are too large."""
        nodes, allowance = dict[str, Node](), ReadAllowance(UNIT_BYTES)
        for entry in reversed(entries):
            for name in (entry.history, entry.ids):
                if name is None or name in nodes:
                    continue
                try:
                    chain = await read_chain(self._records, self._decoder, name, allowance)
                except TooLarge:
                    return None
                if chain is None:
                    return None
                nodes |= dict(chain)
        return nodes

    async def _shared(self, entries: Sequence[Entry], nodes: Mapping[str, Node]) -> set[str]:
        """Return the names of the nodes that others refer to, and of their ancestors."""
        own = {name[-16:] for name in nodes} | {entry.id[-16:] for entry in entries}
        shared = set[str]()
        for name in sorted(nodes, key=lambda each: nodes[each].depth, reverse=True):
            prefix = reference(name, "")
            sources = await self._records.range(prefix, after_prefix(prefix), limit=_SOURCES)
            if len(sources) == _SOURCES or any(key.removeprefix(prefix) not in own for key, _ in sources):
                shared.add(name)
            if name in shared and (parent := nodes[name].parent):
                shared.add(parent)
        return shared

    async def _get(self, keys: Iterable[str]) -> dict[str, Record]:
        found = dict[str, Record]()
        for some in batched(keys, _READ_KEYS):
            found |= await self._records.get_many(some)
        return found


def _pointer_keys(hasher: Hasher, entries: Sequence[Entry], nodes: Mapping[str, Node]) -> list[str]:
    """Return the keys of all rows that may point to items of these responses."""
    keys = [key for entry in entries for key in entry.rows() if key.startswith("i/")]
    for name, node in nodes.items():
        first = pointers(hasher, f"n/{name}", node.items)
        keys += [key for each in first for key in (each, further_pointer(each, name))]
    return list(dict.fromkeys(keys))


def _unit(responses: Sequence[Found], stored: _Stored) -> Unit:
    entries = [each.entry for each in responses]
    names, copies = _renamed(entries, stored)
    ids = {entry.id for entry in entries}
    branches = {key for entry in entries for key in entry.rows() if key.startswith("y/")}
    within = {key for key in branches if key.split("/")[2] in ids}
    moved, left = _moved_pointers(Hasher(entries[0].owner, tag_of(entries[0].id)), names, stored)
    own = {key for key, record in stored.pointed.items() if read_pointer(record.value)[0].removeprefix("r/") in ids}
    rows: list[tuple[str, bytes]] = [(f"r/{copy.id}", copy.encode()) for copy in copies]
    rows += [(key, b"") for copy in copies for key in copy.references()]
    rows += _node_rows(stored.nodes, names)
    rows += [(f"b/{names[key.removeprefix('b/')]}", record.value) for key, record in stored.big.items()]
    rows += [(key, record.value) for key, record in stored.requests.items()]
    rows += [(key, b"") for key in within]
    versions = [VersionIs(f"r/{each.entry.id}", each.version) for each in responses]
    versions += [VersionIs(key, stored.pointed[key].version) for key in moved if key in stored.pointed]
    return Unit(
        entries[0].owner,
        [*rows, *moved.items()],
        {entry.id: entry.order for entry in entries},
        list(moved),
        [*own, *(branches - within)],
        [*map(Delete, [*stored.requests, *within]), *left],
        versions,
        {key: content for entry in entries for key, content in entry.references().items()},
        tag_of(entries[0].id),
        bool(stored.shared),
    )


def _renamed(entries: Sequence[Entry], stored: _Stored) -> tuple[Mapping[str, str], Sequence[Entry]]:
    """Return new names of all nodes and big fields, by their names, and the entries with these."""
    seed, former = secrets.token_bytes(16), [*stored.nodes, *(key.removeprefix("b/") for key in stored.big)]
    hasher = Hasher(entries[0].owner, tag_of(entries[0].id))
    names = {name: hasher.content(seed + name.encode()) for name in former}
    copies = [
        replace(
            entry,
            history=names.get(entry.history or ""),
            ids=names.get(entry.ids or ""),
            fields={field: names[name] for field, name in entry.fields.items()},
        )
        for entry in entries
    ]
    return names, copies


def _node_rows(nodes: Mapping[str, Node], names: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Return the rows of the nodes under their new names, with the references of each to its parent."""
    rows = list[tuple[str, bytes]]()
    for name, node in nodes.items():
        links = tuple(names[link] for link in node.links)
        copy = Node(node.depth, links, in_renamed(node.items, names), node.before)
        rows.append((f"n/{names[name]}", copy.encode()))
        if copy.parent:
            rows.append((reference(copy.parent, names[name]), b""))
    return rows


def _moved_pointers(hasher: Hasher, names: Mapping[str, str], stored: _Stored) -> tuple[Pointers, Sequence[Put]]:
    """Return the pointers to the nodes under their new names, and pointers that the former nodes get in place of them.

    The pointer to an item of a node that others share stays with these: the copy gets one behind it. Others may begin
    to share a node until it is deleted, with its pointers.
    """
    moved, left, pointed = dict[str, bytes](), list[Put](), stored.pointed
    for name, node in stored.nodes.items():
        for key, first in pointers(hasher, f"n/{name}", node.items).items():
            value = f"n/{names[name]} {read_pointer(first.value)[1]}".encode()
            behind, further = further_pointer(key, name), further_pointer(key, names[name])
            if not _is_to(pointed.get(key), name):
                if _is_to(pointed.get(behind), name):
                    moved[further] = value
            elif name in stored.shared:
                moved[further] = value
            else:
                moved[key] = value
                left.append(Put(behind, first.value))
    return moved, left


def _is_to(record: Record | None, name: str) -> bool:
    """Return whether a pointer leads to the node with this name."""
    return record is not None and read_pointer(record.value)[0] == f"n/{name}"
