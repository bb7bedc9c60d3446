"""The ids of a response's items where its content is shared.

Histories with the same words share nodes, and a node holds the ids of the response that was stored first. A later
response has ids of its own, which clients refer to. They are kept as a chain of nodes next to the history. The first
item of such a node is a header:

    {"type": "own_ids", "in": <the node that ends the shared content>, "end": <number of items up to there>}

Each further item gives an id, or the ids of one request, to items of the history by their positions:

    {"id": "msg_...", "at": <position>}
    {"id": <seed of the ids>, "at": <position of index 0>, "runs": [<indices without an id>, <indices with one>, ...]}

An item whose id the client did not send gets one of a seed (`core/ids.py`). So a client that sends its whole history
again with every request does not have all its ids stored again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import pairwise
from typing import Any, Final

from ..concurrency.offloading import Computation, in_thread_if_large
from ..core.ids import Seeded, seeded
from ..core.types import Json
from ..items.listed_items import id_of_seed
from .codec import TooLarge
from .content_names import Hasher
from .decoder import Decoder
from .history_nodes import Node, read_chain
from .layout import read_pointer
from .read_allowance import ReadAllowance
from .records import Record, Records

_HEADER: Final = "own_ids"

COMPARED_BYTES: Final = 128 * 2**20
"""Maximum bytes of a history that is read to compare ids, as `codec.size` counts them."""


async def indices_with_other_ids(
    records: Records,
    hasher: Hasher,
    names: Sequence[str],
    items: Sequence[Json],
    computation: Computation,
    *,
    known: Mapping[str, Record],
    read: Set[str],
    new: int,
) -> list[int]:
    """Return the indices of the items that may be stored under other ids than theirs, in one round trip at most.

    Args:
        names: for each item, the name of the history that it ends. The last one is a stored node.
        items: items whose content is stored.
        computation: computes on `items`.
        known: the stored records with the keys `read`.
        new: the index from which the ids are new, so that nothing is stored with them.
    """

    def rows_of_items() -> tuple[dict[str, int], dict[str, Record], list[str]]:
        rows = {f"i/{hasher.item(item['id'])}": index for index, item in enumerate(items) if item.get("id")}
        stored = {key: known[key] for key in rows if key in known}
        return rows, stored, [key for key, index in rows.items() if key not in read and index < new]

    rows, stored, unread = await computation.run(rows_of_items)
    if not rows:
        return []
    if unread:
        stored |= await records.get_many(unread)
    return await computation.run(partial(_indices_stored_under_other_ids, names, rows, stored))


def _indices_stored_under_other_ids(
    names: Sequence[str], rows: Mapping[str, int], records: Mapping[str, Record]
) -> list[int]:
    """Return those of the indices in `rows` whose pointers do not lead to the stored histories."""
    ends = {f"n/{name}": index for index, name in enumerate(names)}
    starts: dict[str, set[int]] = defaultdict(set)
    targets = {rows[row]: read_pointer(record.value) for row, record in records.items()}
    for index, (key, position) in targets.items():
        starts[key].add(index - position)
    stored = {index for index, (key, _) in targets.items() if ends.get(key, -1) >= index and len(starts[key]) == 1}
    return [index for index in rows.values() if index not in stored]


async def node_items(
    records: Records,
    decoder: Decoder,
    names: Sequence[str],
    items: Sequence[Json],
    indices: Sequence[int],
    computation: Computation,
    *,
    is_whole: bool,
    generated: int,
    compared_bytes: int,
    known: Mapping[str, Record],
) -> Sequence[Json]:
    """Return the items of the node that gives `items` their own ids; nothing if they are stored under these.

    They keep the ids of the earlier response if the history that they share with it is too large to be read.

    Args:
        names, items, computation: as for `indices_with_other_ids`.
        indices: what `indices_with_other_ids` returned.
        is_whole: whether the history begins with `items`.
        generated: the index of the first item that the response itself generated. Its id is new, and so are the ids
            that this server gives to items of a request: if they were stored, their pointers would lead there.
        compared_bytes: maximum bytes of a history that is read to compare ids.
        known: records of the history that were read before.
    """
    before = 0
    if not is_whole or not await computation.run(partial(_are_named_here, items, indices, generated)):
        try:
            chain = await read_chain(records, decoder, names[-1], ReadAllowance(compared_bytes), known)
        except TooLarge:
            return ()
        if chain is None:
            return ()
        nodes = [node.items for _, node in chain]
        before, indices = await in_thread_if_large(partial(_differing, nodes, items, indices), nodes)
    if not indices:
        return ()
    header = {"type": _HEADER, "in": names[-1], "end": before + len(items)}
    return await computation.run(lambda: [header, *_entries({before + index: items[index] for index in indices})])


def _are_named_here(items: Sequence[Json], indices: Iterable[int], generated: int) -> bool:
    """Return whether this server gave its id to each of the items at `indices`, except those that are generated."""
    return all(_seed_of(items[index]) for index in indices if index < generated)


def _differing(
    nodes: Iterable[Sequence[Json]], items: Sequence[Json], indices: Iterable[int]
) -> tuple[int, Sequence[int]]:
    """Return the position of `items` in the stored history, and the indices of those that have other ids there.

    Args:
        nodes: the items of the nodes of the history, which ends with `items`.
        indices: the indices of the items to compare.
    """
    stored = [item for node in nodes for item in node]
    before = len(stored) - len(items)
    return before, [index for index in indices if stored[before + index].get("id") != items[index]["id"]]


def _entries(items: Mapping[int, Json]) -> Iterator[Json]:
    """Yield the entries that give these items, by position, their ids."""
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for at, item in items.items():
        if seed := _seed_of(item):
            groups[seed.seed, at - seed.number].append(seed.number)
        else:
            yield {"id": item["id"], "at": at}
    for (seed_of_group, at), indices in groups.items():
        yield {"id": seed_of_group, "at": at, "runs": _runs(indices)}


def _seed_of(item: Json) -> Seeded | None:
    """Return the seed and the index of which the item's id consists; None if it has another form."""
    parts = seeded(item["id"])
    return parts if parts and id_of_seed(item, parts) == item["id"] else None


def _runs(indices: Sequence[int]) -> list[int]:
    """Return how many indices are left out, how many are there, and so on in turn."""
    edges = [0]
    for index in indices:
        if index == edges[-1] and len(edges) > 1:
            edges[-1] += 1
        else:
            edges += [index, index + 1]
    return [after - before for before, after in pairwise(edges)]


def _indices(runs: Iterable[int]) -> Iterator[int]:
    """Yield the indices from which `_runs` built its list."""
    at = 0
    for number, length in enumerate(runs):
        if number % 2:
            yield from range(at, at + length)
        at += length


def with_own_ids(items: Sequence[Json], chain: Iterable[Node], first: int = 0) -> list[Json]:
    """Return the items of a history with the ids that these nodes give them.

    Args:
        items: the history, or a part of it.
        chain: the nodes, oldest first.
        first: the position of the first of `items` in the history.
    """
    named = list(items)
    for node in chain:
        for entry in node.items[1:]:
            for at in _positions(entry):
                if first <= at < first + len(named):
                    named[at - first] = _named(named[at - first], entry, at)
    return named


def end_of(node: Node) -> tuple[str, int]:
    """Return the node that ends the content to which this node gives ids, and the number of items up to there."""
    header = node.items[0]
    return header["in"], header["end"]


def in_renamed(items: Sequence[Json], names: Mapping[str, str]) -> Sequence[Json]:
    """Return the items of a node where it and others have other names; a node of ids names one that it belongs to."""
    if not are_own_ids(items):
        return items
    return [{**items[0], "in": names.get(items[0]["in"], items[0]["in"])}, *items[1:]]


def are_own_ids(stored: Any) -> bool:
    """Return whether the value of a node's record gives ids, instead of holding the items of a history."""
    return bool(stored) and stored[0].get("type") == _HEADER


async def find(
    records: Records,
    decoder: Decoder,
    stored: Sequence[Json],
    named: Sequence[tuple[str, int]],
    allowance: ReadAllowance,
) -> list[tuple[str, Json]]:
    """Return the items of which a node of ids gives these ids, each with its id.

    Args:
        stored: the value of the node's record.
        named: the ids, each with the index of its entry in `stored`.

    Raises:
        TooLarge: the history that they are in exceeds `allowance`.
    """
    chain = await read_chain(records, decoder, stored[0]["in"], allowance)
    items = [item for _, node in chain for item in node.items] if chain else []
    return [match for item_id, index in named for match in _with_id(item_id, stored[index], items)]


def _with_id(item_id: str, entry: Json, items: Sequence[Json]) -> Iterator[tuple[str, Json]]:
    for at in _positions(entry):
        if at < len(items) and (item := _named(items[at], entry, at))["id"] == item_id:
            yield item_id, item


def _positions(entry: Json) -> Iterable[int]:
    """Return the positions of the items to which an entry gives ids."""
    return (entry["at"] + index for index in _indices(entry["runs"])) if "runs" in entry else (entry["at"],)


def _named(item: Json, entry: Json, at: int) -> Json:
    """Return the item at this position with the id that the entry gives it."""
    own = id_of_seed(item, Seeded(entry["id"], at - entry["at"])) if "runs" in entry else entry["id"]
    return {"id": own, **item} | {"id": own}
