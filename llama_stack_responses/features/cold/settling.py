"""Moves what stays in the store of packed chains into pages, where each row takes memory: in Redis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from heapq import merge
from itertools import batched
from typing import Final, NamedTuple

from ...concurrency.offloading import in_thread, list_yielding_lock
from ...concurrency.tasks import half_of_the_time
from ...store.layout import LISTS, read_pointer
from ...store.records import Record, VersionIs
from ...store.search_index import index_of
from .pages import KINDS, PagedRecords
from .prefixes import ITEMS
from .rows import Place, place_of

_TRIES: Final = 3
SETTLED_TOGETHER: Final = 200_000
"""Rows to give at a time: of so many, in order, several are for the same page, which is written once."""
_READ: Final = 64
_MOVED: Final = 64
"""Rows that are moved in one commit: each may be for another page."""
_SORTED: Final = 1_000
"""Rows that are sorted at a time: the interpreter lock is held meanwhile."""

type _Chains = Mapping[Place, Sequence[str]]
"""The keys of the rows of chains."""
type _Rows = Sequence[tuple[str, Place]]
"""Keys of rows that are moved in one commit, with their chains."""


class Settling:
    """Moves rows into pages.

    Args:
        records: the store.
    """

    def __init__(self, records: PagedRecords) -> None:
        self._records = records

    async def settle(self, chains: _Chains) -> None:
        """Move the rows of chains of one partition, and the rows with these keys, in the order of the keys.

        Those of the chains, on which all others depend, are the last. What has changed meanwhile stays by itself. Half
        of the time is that of other work.

        Args:
            chains: the keys of their rows, about `SETTLED_TOGETHER` if there are so many.

        Raises:
            ApiError: 503, the store does not answer.
        """
        if index_of(self._records) is not None:
            return
        seen = await self._look_at(chains)
        for some in await in_thread(_ordered, chains):
            rows = dict(some)
            async with half_of_the_time():
                for _ in range(_TRIES):
                    if await self._move(rows, seen):
                        break
                    seen = seen.but(await self._look_at({place: chains[place] for place in rows.values()}))

    async def _look_at(self, chains: _Chains) -> _Seen:
        """Return what is known of chains: first the versions of their rows."""
        versions = dict[Place, int | None]()
        for some in batched(chains, _READ):
            found = await self._records.unpaged.get_many([place.key for place in some])
            versions |= {place: found[place.key].version if place.key in found else None for place in some}
        stubs, items = set[str](), set[str]()
        for keys in batched((key for of in chains.values() for key in of if key.startswith(("j/", "r/"))), _READ):
            rows = await self._records.unpaged.get_many(keys)
            stubs |= {key for key, record in rows.items() if key.startswith("r/") and place_of(key, record) in versions}
            # Only one item has this further pointer, so what it leads to is packed.
            targets = {_target(record) for key, record in rows.items() if key.startswith("j/")}
            items |= {key for key in targets if key.startswith(ITEMS)}
        return _Seen(versions, stubs, items)

    async def _move(self, rows: Mapping[str, Place], seen: _Seen) -> bool:
        """Move rows of chains in one commit; return False if something changed meanwhile."""
        found = await self._records.unpaged.get_many([key for key, place in rows.items() if seen.versions[place]])
        moved = {key: record for key, record in found.items() if seen.has(key, record)}
        places = dict.fromkeys(rows[key] for key in moved)
        conditions = [VersionIs(place.key, seen.versions[place]) for place in places]
        return not moved or await self._records.settle(moved, conditions)


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


def _ordered(chains: _Chains) -> list[_Rows]:
    """Return the keys of rows of chains that pages may have, in order, and then those of the chains' own rows."""
    rows = ((key, place) for place, keys in chains.items() for key in keys if key.startswith(KINDS))
    return [*_in_order(rows), *_in_order((place.key, place) for place in chains)]


def _in_order(rows: Iterable[tuple[str, Place]]) -> list[_Rows]:
    # To sort all at once would hold the interpreter lock for longer.
    ordered = list_yielding_lock(sorted(some) for some in batched(rows, _SORTED))
    return list_yielding_lock(batched(merge(*ordered), _MOVED))


def _target(record: Record) -> str:
    """Return the key of the row to which a pointer leads."""
    return read_pointer(record.value)[0]
