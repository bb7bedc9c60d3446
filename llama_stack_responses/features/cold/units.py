"""What is packed together: a copy of the records of some responses of a user, and of all that they need.

Packing stores a copy elsewhere and deletes the responses here, as a deletion does; bringing back stores the copy. So
content that other responses share stays with these. The histories of the copy have names of their own: nothing that is
stored meanwhile can be taken for them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import batched
from typing import Final

from ...concurrency.offloading import in_thread_if_many
from ...concurrency.tasks import gather_or_cancel
from ...core.ids import tag_of
from ...core.owner import Owner
from ...logs import get_logger
from ...store.codec import TooLarge, UnreadableError
from ...store.content_names import Hasher
from ...store.decoder import Decoder
from ...store.history_nodes import Node, node_of, read_chain, relinked
from ...store.item_ids import are_own_ids, in_renamed
from ...store.layout import (
    Entry,
    chat_request,
    further_pointer,
    listing,
    pointers,
    read_pointer,
    reference,
)
from ...store.merged_records import MergedRecords
from ...store.read_allowance import PAGE_BYTES, ReadAllowance
from ...store.records import (
    Condition,
    Delete,
    Op,
    Put,
    Record,
    Records,
    VersionIs,
    after_prefix,
    bytes_of,
    pages_of_keys,
    ranges_in,
)
from .pack import Rows
from .rows import Place, RecordStub, pointer_stub

logger = get_logger(__name__)

UNIT_BYTES: Final = 64 * 2**20
"""Most bytes of the histories of what is packed together, as `codec.size` counts, without their large nodes, which are
packed one by one; a response with more stays."""
PART_BYTES: Final = 2**20
"""Bytes of a large node, such as one with an image, in a history that has too many bytes otherwise."""
_READ_KEYS: Final = 500
_MERGED_BYTES: Final = 16 * 2**20
"""Most bytes that units have in the store, compressed, if they are read together."""
_SMALL_BYTES: Final = 2**20
"""Bytes of the histories of a unit whose nodes need not be measured before they are encoded."""
_SOURCES: Final = 8
"""References to one node that are read at first."""
_AT_ONCE: Final = 16
"""Nodes of a unit whose references are read at a time."""

type Pointers = Mapping[str, bytes]
"""Pointers to items that a chain has when it is back, by their keys."""


@dataclass(frozen=True, slots=True)
class Found:
    """The record of a response, and its version."""

    entry: Entry
    version: int


@dataclass(frozen=True, slots=True)
class Part:
    """A large node, which is read again when it is packed, by itself.

    Attributes:
        key: its key where it is packed.
        source: its key in the store.
        links: the names of its ancestors where it is packed.
        size: its bytes in the store.
    """

    key: str
    source: str
    links: Sequence[str]
    size: int

    def row(self, record: Record) -> tuple[str, bytes]:
        """Return the row that is packed, given the record in the store."""
        return self.key, relinked(record.value, self.links)


@dataclass(frozen=True, slots=True)
class Unit:
    """What is packed together.

    Attributes:
        owner: the user.
        rows: what is packed; what is encoded anew is not compressed.
        parts: what is packed beside it, each by itself.
        orders: the positions of the responses in their owner's list, by their ids.
        stubs: the keys of the pointers that stay as stubs.
        stays: the keys of rows that stay as they are, until the chain is deleted.
        ops: what else packing changes in the store.
        conditions: say that nothing has changed since it was read.
        held: the keys of the responses' references, each with the key of the content.
        tag: that of the responses.
        found: the key by which they were found, in a list or of a conversation.
        oldest: the moment since which it is idle, as the beginning of a position in a list.
        items: how many items of a conversation it has.
        pointers: the keys of the pointers that may lead to these.
    """

    owner: Owner
    rows: Rows
    parts: Sequence[Part]
    orders: Mapping[str, str]
    stubs: Collection[str]
    stays: Collection[str]
    ops: Sequence[Op]
    conditions: Sequence[Condition]
    held: Mapping[str, str]
    tag: int
    found: str
    oldest: str
    items: int = 0
    pointers: Sequence[str] = ()

    @property
    def paged(self) -> list[str]:
        """The keys of the rows that are moved into pages: those that find the responses, and list them."""
        listed = (listing(Hasher(self.owner).owner, order, each) for each, order in self.orders.items())
        return [*(f"r/{each}" for each in self.orders), *self.stubs, *self.stays, *self.pointers, *listed]

    def put_stubs(self, place: Place) -> list[Op]:
        """Return the ops that write the stubs."""
        return stub_ops(self.orders, self.stubs, place)


def stub_ops(orders: Mapping[str, str], pointed: Collection[str], place: Place) -> list[Op]:
    """Return the ops that write the stubs of responses, and of the pointers with these keys."""
    records = [RecordStub(place, order).put(response_id) for response_id, order in orders.items()]
    return [*records, *(pointer_stub(key, place) for key in pointed)]


@dataclass(frozen=True, slots=True)
class ReadUnit:
    """What responses have in the store.

    Attributes:
        responses: the responses, of one owner and tag, oldest first.
        nodes: the nodes of their histories, by name, ancestors first; of the large ones only the ids of the items.
        large: the bytes of the large ones, by name.
        shared: the names of those that others share.
        big: the big fields, by key.
        pointed: pointers that may lead to their items, by key.
        requests: recorded chat requests, by key.
        are_small: whether the nodes are known not to be large.
    """

    responses: Sequence[Found]
    nodes: Mapping[str, Node]
    large: Mapping[str, int]
    shared: Collection[str]
    big: Mapping[str, Record]
    pointed: Mapping[str, Record]
    requests: Mapping[str, Record]
    are_small: bool

    @property
    def newest(self) -> str:
        """The greatest position of the responses in their owner's list."""
        return max(each.entry.order for each in self.responses)


async def read_units(
    records: Records, decoder: Decoder, number: int, units: Sequence[Sequence[Found]]
) -> list[ReadUnit | None]:
    """Return what responses have in the store, those of a unit together: of one owner and tag, oldest first.

    Args:
        records: the store, without what is in pages: no row of what is not packed is there.
        decoder: decodes what is read.
        number: the partition of all the units.

    Returns:
        For each unit; None if it stays: part of it is gone, damaged or too large.

    Raises:
        ApiError: 503, the store does not answer.
    """
    if len(units) > 1:
        left = ReadAllowance(UNIT_BYTES)

        def hold(size: int) -> None:
            left.check(size)
            left.spend(size)

        merged = MergedRecords(records, number, _MERGED_BYTES)
        try:
            return await gather_or_cancel(_read(_Reading(merged, decoder, number, hold), each) for each in units)
        except TooLarge:
            pass  # Together they are too large, so each is read alone.
    return [await _read_alone(_Reading(records, decoder, number), each) for each in units]


async def _read_alone(reading: _Reading, responses: Sequence[Found]) -> ReadUnit | None:
    try:
        return await _read(reading, responses)
    except TooLarge:
        return None


async def _read(reading: _Reading, responses: Sequence[Found]) -> ReadUnit | None:
    try:
        return await reading.read(responses)
    except UnreadableError as error:
        logger.error("an idle response cannot be read, leaving it: %s", error)
        return None


class _Reading:
    """Reads what responses have in the store.

    Args:
        records, decoder, number: as for `read_units`.
        hold: is given if others are read at the same time: called with the bytes that are decoded, it raises `TooLarge`
            if they are too many. Large nodes are read one by one only without it.
    """

    def __init__(
        self, records: Records, decoder: Decoder, number: int, hold: Callable[[int], object] | None = None
    ) -> None:
        self._records, self._decoder, self._number, self._hold = records, decoder, number, hold
        self._are_small = False

    async def read(self, responses: Sequence[Found]) -> ReadUnit | None:
        """Return what they have; None if part of it is gone.

        Raises:
            TooLarge: it is too large.
            ApiError: 503, the store does not answer; 500, what is stored is damaged.
        """
        entries = [each.entry for each in responses]
        large = dict[str, int]()
        try:
            nodes = await self._nodes(entries)
        except TooLarge:
            if self._hold:
                raise
            nodes = await self._one_by_one(entries, large)
        fields = dict.fromkeys(f"b/{name}" for entry in entries for name in entry.fields.values())
        big = await self._get(fields)
        if nodes is None or len(big) < len(fields):
            return None
        shared = await self._shared(entries, nodes)
        hasher = Hasher(entries[0].owner, tag_of(entries[0].id))
        asked = await in_thread_if_many(partial(_pointer_keys, hasher, entries, nodes), _items_of(nodes))
        pointed = await self._get(asked)
        requests = await self._get(
            chat_request(entry.id, number) for entry in entries for number in range(entry.recorded)
        )
        return ReadUnit(responses, nodes, large, shared, big, pointed, requests, self._are_small)

    async def _nodes(self, entries: Sequence[Entry]) -> dict[str, Node] | None:
        """Return all nodes of the histories by name; None if one is gone.

        Raises:
            TooLarge: they have too many bytes.
        """
        nodes, allowance = dict[str, Node](), ReadAllowance(UNIT_BYTES, self._hold)
        for entry in reversed(entries):
            for name in (entry.history, entry.ids):
                if name is None or name in nodes:
                    continue
                chain = await read_chain(self._records, self._decoder, name, allowance)
                if chain is None:
                    return None
                nodes |= dict(chain)
        self._are_small = UNIT_BYTES - (allowance.left or 0) <= _SMALL_BYTES
        return nodes

    async def _one_by_one(self, entries: Sequence[Entry], large: dict[str, int]) -> dict[str, Node] | None:
        """Return what `_nodes` does, without the contents of large nodes; these have their bytes added to `large`."""
        nodes, left = dict[str, Node](), UNIT_BYTES
        for end in (name for entry in reversed(entries) for name in (entry.history, entry.ids) if name):
            name: str | None = end
            walked = dict[str, Node]()
            while name and name not in nodes:
                record = (await self._records.get_many([f"n/{name}"])).get(f"n/{name}")
                if record is None:
                    return None
                [(items, size)] = await self._decoder.decode_until([record.value], 1)
                if len(record.value) >= PART_BYTES and not are_own_ids(items):
                    large[name] = len(record.value)
                    items = [{"id": item["id"]} if item.get("id") else {} for item in items]
                elif (left := left - size) < 0:
                    raise TooLarge
                walked[name] = node_of(record.value, items)
                name = walked[name].parent
            nodes |= reversed(walked.items())
        return nodes

    async def _shared(self, entries: Sequence[Entry], nodes: Mapping[str, Node]) -> set[str]:
        """Return the names of the nodes that others refer to, and of their ancestors."""
        own = {name[-16:] for name in nodes} | {entry.id[-16:] for entry in entries}
        shared = set[str]()
        youngest = sorted(nodes, key=lambda each: nodes[each].depth, reverse=True)
        for some in batched(youngest, _AT_ONCE):
            sources = dict(zip(some, await self._sources(some, _SOURCES), strict=True))
            if full := [name for name in some if len(sources[name]) == _SOURCES and own.issuperset(sources[name])]:
                sources |= dict(zip(full, await self._sources(full, len(own) + 1), strict=True))
            for name in some:
                if not own.issuperset(sources[name]):
                    shared.add(name)
                if name in shared and (parent := nodes[name].parent):
                    shared.add(parent)
        return shared

    async def _sources(self, names: Sequence[str], limit: int) -> list[list[str]]:
        """Return what refers to each of these nodes, as far as the limit of each."""
        prefixes = [reference(name, "") for name in names]
        spans = [(prefix, after_prefix(prefix)) for prefix in prefixes]
        rows = await ranges_in(self._records, self._number, spans, limit=limit)
        return [[key.removeprefix(prefix) for key, _ in of] for prefix, of in zip(prefixes, rows, strict=True)]

    async def _get(self, keys: Iterable[str]) -> dict[str, Record]:
        """Read.

        Raises:
            TooLarge: there are too many bytes.
        """
        found, left = dict[str, Record](), UNIT_BYTES
        async for some in pages_of_keys(self._records, list(keys), _READ_KEYS, PAGE_BYTES):
            found |= some
            if (left := left - bytes_of(some.values())) < 0:
                raise TooLarge
        return found


def _pointer_keys(hasher: Hasher, entries: Sequence[Entry], nodes: Mapping[str, Node]) -> list[str]:
    """Return the keys of all rows that may point to items of these responses."""
    keys = [key for entry in entries for key in entry.rows() if key.startswith("i/")]
    for name, node in nodes.items():
        first = pointers(hasher, f"n/{name}", node.items)
        keys += [key for each in first for key in (each, further_pointer(each, name))]
    return list(dict.fromkeys(keys))


def _items_of(nodes: Mapping[str, Node]) -> Sequence[object]:
    return [item for node in nodes.values() for item in node.items]


def unit_of(stored: ReadUnit) -> Unit:
    """Return the unit of responses. It takes milliseconds, and longer with large histories."""
    responses, entries = stored.responses, [each.entry for each in stored.responses]
    names, copies = _renamed(entries, stored)
    ids = {entry.id for entry in entries}
    branches = dict.fromkeys(key for entry in entries for key in entry.rows() if key.startswith("y/"))
    within = dict.fromkeys(key for key in branches if key.split("/")[2] in ids)
    moved, left = _moved_pointers(Hasher(entries[0].owner, tag_of(entries[0].id)), names, stored)
    own = [key for key, record in stored.pointed.items() if read_pointer(record.value)[0].removeprefix("r/") in ids]
    rows: list[tuple[str, bytes]] = [(f"r/{copy.id}", copy.encode(pack=False)) for copy in copies]
    rows += [(key, b"") for copy in copies for key in copy.references()]
    rows += _node_rows(stored, names)
    rows += [(f"b/{names[key.removeprefix('b/')]}", record.value) for key, record in stored.big.items()]
    rows += [(key, record.value) for key, record in stored.requests.items()]
    rows += [(key, b"") for key in within]
    versions = [VersionIs(f"r/{each.entry.id}", each.version) for each in responses]
    versions += [VersionIs(key, stored.pointed[key].version) for key in moved if key in stored.pointed]
    return Unit(
        entries[0].owner,
        [*rows, *moved.items()],
        [
            Part(f"n/{names[name]}", f"n/{name}", [names[link] for link in stored.nodes[name].links], size)
            for name, size in stored.large.items()
        ],
        {entry.id: entry.order for entry in entries},
        list(moved),
        [*own, *(key for key in branches if key not in within)],
        [*map(Delete, [*stored.requests, *within]), *left],
        versions,
        {key: content for entry in entries for key, content in entry.references().items()},
        tag_of(entries[0].id),
        entries[0].listed,
        min(entry.order for entry in entries),
    )


def _renamed(entries: Sequence[Entry], stored: ReadUnit) -> tuple[Mapping[str, str], Sequence[Entry]]:
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


def _node_rows(stored: ReadUnit, names: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Return the rows of the nodes, without the large ones, under their new names, and the references to parents."""
    rows = list[tuple[str, bytes]]()
    for name, node in stored.nodes.items():
        if name not in stored.large:
            links = tuple(names[link] for link in node.links)
            copy = Node(node.depth, links, in_renamed(node.items, names), node.before)
            rows.append((f"n/{names[name]}", copy.encode(pack=False, small=stored.are_small)))
        if node.parent:
            rows.append((reference(names[node.parent], names[name]), b""))
    return rows


def _moved_pointers(hasher: Hasher, names: Mapping[str, str], stored: ReadUnit) -> tuple[Pointers, Sequence[Put]]:
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
