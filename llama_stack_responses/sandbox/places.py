"""How many containers there may be, and how many of them one owner may have."""

from __future__ import annotations

from collections import Counter

from ..core.owner import Owner


class TooMany(RuntimeError):  # noqa: N818
    """There is no room for another container."""


class Places:
    """Counts containers from before they are made until their files are gone.

    Args:
        total: how many there may be.
        per_owner: how many of them one owner may have. It does not hold for the one owner of a stack without
            authentication, who is all its users.
    """

    def __init__(self, total: int, per_owner: int) -> None:
        self._total = total
        self._per_owner = per_owner
        self._taken: Counter[tuple[str, str]] = Counter()

    def take(self, owner: Owner) -> None:
        """Counts one more.

        Raises:
            TooMany: the owner, or all together, have as many as they may.
        """
        if not owner.is_anonymous and self._taken[owner.identity] >= self._per_owner:
            raise TooMany(
                f"You have {self._per_owner} containers, and may have no more at a time. "
                "Delete one, or try again later."
            )
        if self._taken.total() >= self._total:
            raise TooMany("This server has as many containers as it may have. Try again later.")
        self._taken[owner.identity] += 1

    def give_back(self, owner: Owner) -> None:
        """Counts one less."""
        self._taken[owner.identity] -= 1
        if not self._taken[owner.identity]:
            del self._taken[owner.identity]
