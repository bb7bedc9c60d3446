"""Moves what stays in the store of packed chains into pages, where each row takes memory: in Redis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import batched
from typing import Final, NamedTuple

from ...concurrency.tasks import half_of_the_time
from ...store.layout import LISTS, read_pointer
from ...store.records import Record, VersionIs
from ...store.search_index import index_of
from .pages import KINDS, PagedRecords
from .rows import ITEMS, Place, place_of

_TRIES: Final = 3
_ROWS: Final = 10_000
"""Rows that are sorted before they are moved: of so many, several are for the same page, which is written once."""
_READ: Final = 128
_MOVED: Final = 128
"""Rows that are moved in one commit: each may be for another page."""

type _Chains = Mapping[Place, Sequence[str]]
"""The keys of the rows of chains."""


class Settling:
    """Moves rows into pages.

    Args:
        records: the store.
    """

    def __init__(self, records: PagedRecords) -> None:
        self._records = records

    async def settle(self, chains: _Chains) -> None:
        """Move the rows of chains, and the rows with these keys. What has changed meanwhile stays by itself.

        Half of the time is that of other work.

        Raises:
            ApiError: 503, the store does not answer.
        """
        if index_of(self._records) is not None:
            return
        of_parts = defaultdict[int, list[Place]](list)
        for place in chains:
            of_parts[place.tag % self._records.partitions].append(place)
        for places in of_parts.values():
            for some in _together(places, chains):
                await self._settle(some)

    async def _settle(self, chains: _Chains) -> None:
        """Move rows in the order of their keys; those of the chains, on which all others depend, at last."""
        seen = await self._look_at(chains)
        rows = {key: place for place, keys in chains.items() for key in keys if key.startswith(KINDS)}
        for of in (rows, {place.key: place for place in chains}):
            for some in batched(sorted(of), _MOVED):
                async with half_of_the_time():
                    for _ in range(_TRIES):
                        if await self._move({key: of[key] for key in some}, seen):
                            break
                        seen = seen.but(await self._look_at({of[key]: chains[of[key]] for key in some}))

    async def _look_at(self, chains: _Chains) -> _Seen:
        """Return what is known of chains: first the versions of their rows."""
        found = await self._read([place.key for place in chains])
        versions = {place: found[place.key].version if place.key in found else None for place in chains}
        rows = await self._read([key for keys in chains.values() for key in keys if key.startswith(("j/", "r/"))])
        stubs = {key for key, record in rows.items() if key.startswith("r/") and place_of(key, record) in versions}
        # Only one item has this further pointer, so what it leads to is packed.
        items = {_target(record) for key, record in rows.items() if key.startswith("j/")}
        return _Seen(versions, stubs, {key for key in items if key.startswith(ITEMS)})

    async def _move(self, rows: Mapping[str, Place], seen: _Seen) -> bool:
        """Move rows of chains in one commit; return False if something changed meanwhile."""
        found = await self._records.unpaged.get_many([key for key, place in rows.items() if seen.versions[place]])
        moved = {key: record for key, record in found.items() if seen.has(key, record)}
        places = dict.fromkeys(rows[key] for key in moved)
        conditions = [VersionIs(place.key, seen.versions[place]) for place in places]
        return not moved or await self._records.settle(moved, conditions)

    async def _read(self, keys: Sequence[str]) -> dict[str, Record]:
        found = dict[str, Record]()
        for some in batched(keys, _READ):
            found |= await self._records.unpaged.get_many(some)
        return found


class _Seen(NamedTuple):
    """What is known of chains.

    Attributes:
        versions: the versions of their rows, None if they are gone.
        stubs: the keys of those of their records that are stubs.
        items: the keys of items of conversations that are packed.
    """

    versions: Mapping[Place, int | None]
    stubs: Set[str]
    items: Set[str]

    def but(self, newer: _Seen) -> _Seen:
        """Return the same with what was seen later of some chains."""
        return _Seen({**self.versions, **newer.versions}, self.stubs | newer.stubs, self.items | newer.items)

    def has(self, key: str, record: Record) -> bool:
        """Return whether a row is one of the chains, and others have not written it since."""
        if key.startswith(LISTS):
            return f"r/{key.rpartition('/')[2]}" in self.stubs
        if key.startswith(("i/", "j/")) and place_of(key, record) not in self.versions:
            return _target(record) in self.stubs or _target(record) in self.items
        return key in self.stubs or not key.startswith("r/")


def _together(places: Iterable[Place], chains: _Chains) -> Iterator[_Chains]:
    """Yield chains, as many at a time as have not too many rows."""
    some, rows = dict[Place, Sequence[str]](), 0
    for place in places:
        some[place] = chains[place]
        rows += len(chains[place])
        if rows >= _ROWS:
            yield some
            some, rows = {}, 0
    if some:
        yield some


def _target(record: Record) -> str:
    """Return the key of the row to which a pointer leads."""
    return read_pointer(record.value)[0]
