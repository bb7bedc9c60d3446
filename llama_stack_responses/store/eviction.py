"""The holdings of each owner in a bounded store, which evicts records of the owner with the most."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

type Identity = tuple[str, str]
"""An owner, as `Owner.identity` returns it."""


@dataclass(slots=True)
class _Holding:
    """The records of one owner.

    Attributes:
        rank: distinguishes owners with equal holdings; lower numbers appeared earlier.
        sizes: bytes by key, in the order of the writes.
        size: all bytes.
    """

    rank: int
    sizes: dict[str, int] = field(default_factory=dict)
    size: int = 0


class Holdings:
    """Counts records and bytes of each owner. A change takes O(log(n)) steps for n owners."""

    def __init__(self) -> None:
        self._of: dict[Identity, _Holding] = {}
        self._ranks = 0
        self._by_count: list[tuple[int, int, Identity]] = []
        self._by_size: list[tuple[int, int, Identity]] = []
        self._owners: dict[str, Identity] = {}
        self.size = 0

    def owner_of(self, key: str) -> Identity | None:
        """Return the owner of a record; None if there is none."""
        return self._owners.get(key)

    def add(self, key: str, owner: Identity, size: int) -> None:
        """Count a new record of this many bytes."""
        holding = self._of.get(owner)
        if holding is None:
            self._ranks += 1
            holding = self._of[owner] = _Holding(self._ranks)
        else:
            self._unrank(owner, holding)
        holding.sizes[key] = size
        holding.size += size
        self.size += size
        self._owners[key] = owner
        self._rank(owner, holding)

    def remove(self, key: str) -> None:
        """Count a record no longer."""
        owner = self._owners.pop(key)
        holding = self._of[owner]
        self._unrank(owner, holding)
        size = holding.sizes.pop(key)
        holding.size -= size
        self.size -= size
        if holding.sizes:
            self._rank(owner, holding)
        else:
            del self._of[owner]

    def oldest_of_most_records(self) -> str:
        """Return the key that was written first of the owner with the most records."""
        return self._oldest(self._by_count)

    def oldest_of_most_bytes(self) -> str:
        """Return the key that was written first of the owner with the most bytes."""
        return self._oldest(self._by_size)

    def _oldest(self, ranking: list[tuple[int, int, Identity]]) -> str:
        return next(iter(self._of[ranking[-1][2]].sizes))

    def _rank(self, owner: Identity, holding: _Holding) -> None:
        insort(self._by_count, (len(holding.sizes), holding.rank, owner))
        insort(self._by_size, (holding.size, holding.rank, owner))

    def _unrank(self, owner: Identity, holding: _Holding) -> None:
        del self._by_count[bisect_left(self._by_count, (len(holding.sizes), holding.rank, owner))]
        del self._by_size[bisect_left(self._by_size, (holding.size, holding.rank, owner))]
