"""Moves what stays in the store of packed chains into pages, where each row takes memory: in Redis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import batched
from typing import Final

from ...store.layout import LISTS, read_pointer
from ...store.records import Record, VersionIs
from ...store.search_index import index_of
from .pages import KINDS, PagedRecords
from .rows import ITEMS, Place, place_of

_TRIES: Final = 3
_CHAINS: Final = 16
"""Chains whose rows are moved in one commit: each row may be for another page."""


class Settling:
    """Moves rows into pages.

    Args:
        records: the store.
    """

    def __init__(self, records: PagedRecords) -> None:
        self._records = records

    async def settle(self, chains: Mapping[Place, Sequence[str]]) -> None:
        """Move the rows of chains, and the rows with these keys. What has changed meanwhile stays by itself.

        Raises:
            ApiError: 503, the store does not answer.
        """
        if index_of(self._records) is not None:
            return
        of_parts = defaultdict[int, list[Place]](list)
        for place in chains:
            of_parts[place.tag % self._records.partitions].append(place)
        for places in of_parts.values():
            for some in batched(places, _CHAINS):
                for _ in range(_TRIES):
                    if await _settled(self._records, {place: chains[place] for place in some}):
                        break


async def _settled(records: PagedRecords, chains: Mapping[Place, Sequence[str]]) -> bool:
    """Move the rows of a few chains; return False if something changed meanwhile."""
    keys = [key for place, rows in chains.items() for key in (place.key, *rows) if key.startswith(KINDS)]
    found = await records.unpaged.get_many(keys)
    here = [place for place in chains if place.key in found]
    theirs = {key for place in here for key in (place.key, *chains[place])}
    moved = _without_others({key: found[key] for key in theirs if key in found}, here)
    conditions = [VersionIs(place.key, found[place.key].version) for place in here]
    return not moved or await records.settle(moved, conditions)


def _without_others(rows: Mapping[str, Record], places: Iterable[Place]) -> dict[str, Record]:
    """Return the rows without those that others have written since."""
    known = set(places)
    stubs = {key for key, record in rows.items() if key.startswith("r/") and place_of(key, record) in known}
    # Only one item has this further pointer, so what it leads to is packed.
    packed = {
        target for key, record in rows.items() if key.startswith("j/") and (target := _target(record))[:2] == ITEMS
    }

    def is_theirs(key: str, record: Record) -> bool:
        if key.startswith(LISTS):
            return f"r/{key.rpartition('/')[2]}" in stubs
        if key.startswith(("i/", "j/")) and place_of(key, record) not in known:
            return _target(record) in stubs or _target(record) in packed
        return key in stubs or not key.startswith("r/")

    return {key: record for key, record in rows.items() if is_theirs(key, record)}


def _target(record: Record) -> str:
    """Return the key of the row to which a pointer leads."""
    return read_pointer(record.value)[0]
