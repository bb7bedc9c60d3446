"""Limits on the number of containers, in total and per owner."""

from __future__ import annotations

from collections import Counter

from ..core.owner import Owner


class TooManyContainers(RuntimeError):  # noqa: N818
    """The maximum number of containers is reached."""


class ContainerSlots:
    """A counter of containers, from before their creation until their files are removed.

    Args:
        total: maximum number of containers.
        per_user: maximum for one user. It does not apply without authentication, since all users are one owner then.
    """

    def __init__(self, total: int, per_user: int) -> None:
        self._total = total
        self._per_user = per_user
        self._taken: Counter[tuple[str, str]] = Counter()

    def acquire(self, owner: Owner) -> None:
        """Count one more container.

        Raises:
            TooManyContainers: the owner's limit or the total limit is reached.
        """
        if not owner.is_anonymous and self._taken[owner.identity] >= self._per_user:
            raise TooManyContainers(
                f"You have {self._per_user} containers, which is the maximum. Delete one, or try again later."
            )
        if self._taken.total() >= self._total:
            raise TooManyContainers("This server has reached its maximum number of containers. Try again later.")
        self._taken[owner.identity] += 1

    def release(self, owner: Owner) -> None:
        """Count one container less."""
        self._taken[owner.identity] -= 1
        if not self._taken[owner.identity]:
            del self._taken[owner.identity]
