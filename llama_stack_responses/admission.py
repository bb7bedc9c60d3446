"""Admission control: how much of one resource all requests together, and those of one user, may hold at a time."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from .core.errors import ApiError
from .core.owner import Owner

_RETRY_AFTER: Final = 5
"""Seconds after which a refused request may be sent again."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A bound on one resource.

    Attributes:
        what: the resource as an error message names it, such as "request bodies".
        total: units that all users may hold together.
        per_user: units that one user may hold.
    """

    what: str
    total: int
    per_user: int


class Admission:
    """Counts the units of a resource that are held, and refuses those past its quota."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._held = 0
        self._by_user: dict[Hashable, int] = {}

    @property
    def held(self) -> int:
        """Units that are held now."""
        return self._held

    def lease(self, owner: Owner) -> Lease:
        """An empty lease for a user; it must be released."""
        return Lease(self, owner.identity)

    def take(self, user: Hashable, units: int) -> None:
        """Counts `units` for a user.

        Raises:
            ApiError: 429, the user would hold too many; 503, all users together would.
        """
        quota, theirs = self._quota, self._by_user.get(user, 0)
        if theirs + units > quota.per_user:
            message = f"You have too many {quota.what} open at the same time. Finish some of them, then try again."
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after=_RETRY_AFTER)
        if self._held + units > quota.total:
            message = f"The server has too many {quota.what} open at the same time. Try again later."
            raise ApiError(503, message, code="server_overloaded", retry_after=_RETRY_AFTER)
        self._held += units
        self._by_user[user] = theirs + units

    def give_back(self, user: Hashable, units: int) -> None:
        """Takes `units` of a user off the count."""
        self._held -= units
        left = self._by_user[user] - units
        if left:
            self._by_user[user] = left
        else:
            del self._by_user[user]


class Lease:
    """Units that one request holds. As a context manager, it is released with the block."""

    __slots__ = ("_admission", "_units", "_user")

    def __init__(self, admission: Admission, user: Hashable) -> None:
        self._admission = admission
        self._user = user
        self._units = 0

    def take(self, units: int) -> Self:
        """Holds `units` more.

        Raises:
            ApiError: 429 or 503, there is no room for them.
        """
        self._admission.take(self._user, units)
        self._units += units
        return self

    def release(self) -> None:
        """Gives everything back; may be called again."""
        if self._units:
            self._admission.give_back(self._user, self._units)
            self._units = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.release()
