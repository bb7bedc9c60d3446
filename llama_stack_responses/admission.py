"""Admission control: quotas on the units of one resource that all requests, and those of one user, may hold.

The numbers are settings: those of `config/limits.py`, and for files and pages those of `config/services.py`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from .core.errors import ApiError, too_many_open
from .core.owner import Owner

_RETRY_AFTER_SECONDS: Final = 5
"""Value of the `retry-after` header of a refusal, in seconds."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A bound on one resource.

    Attributes:
        what: name of the resource in error messages, such as "request bodies".
        total: maximum units that all users may hold together.
        per_user: maximum units that one user may hold.
        authenticated_only: whether `per_user` applies to authenticated users only. The one user of a stack without
            authentication may then hold all units.
    """

    what: str
    total: int
    per_user: int
    authenticated_only: bool = False

    def limit_of(self, owner: Owner) -> int:
        """Return the maximum units of this user."""
        return self.total if self.authenticated_only and owner.is_anonymous else self.per_user


class InFlightCounter:
    """Counts the blocks that run now."""

    def __init__(self) -> None:
        self.value = 0

    def __enter__(self) -> Self:
        self.value += 1
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.value -= 1


class Admission:
    """Counts the held units of a resource and refuses requests that exceed its quota.

    While others hold some too, a user who holds some gets no more than what stays free for others. So a few users never
    hold everything: there is room for the first request of the next one, and as units are released, shares get equal.
    """

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._held = 0
        self._by_user: dict[Hashable, int] = {}

    @property
    def per_user(self) -> int:
        """Maximum units that one user may hold."""
        return self._quota.per_user

    @property
    def held(self) -> int:
        """Units that are held now."""
        return self._held

    def reserve(self, owner: Owner) -> Reservation:
        """Return an empty reservation for a user. The caller must release it."""
        return Reservation(self, owner)

    def acquire(self, owner: Owner, units: int) -> None:
        """Count `units` for a user.

        Raises:
            ApiError: 429 if the user would exceed their maximum, or their share while others hold some; 503 if all
                users together would exceed `total`.
        """
        if not units:
            return
        quota, user = self._quota, owner.identity
        theirs = self._by_user.get(user, 0)
        if theirs + units > quota.limit_of(owner):
            raise too_many_open(quota.what, _RETRY_AFTER_SECONDS)
        if self._held + units > quota.total:
            message = f"The server has too many {quota.what} open at the same time. Try again later."
            raise ApiError(503, message, code="server_overloaded", retry_after=_RETRY_AFTER_SECONDS)
        free = quota.total - self._held - units
        if 0 < theirs < self._held and theirs + units > free:
            raise too_many_open(quota.what, _RETRY_AFTER_SECONDS)
        self._held += units
        self._by_user[user] = theirs + units

    def release(self, owner: Owner, units: int) -> None:
        """Subtract `units` of a user from the count."""
        user = owner.identity
        self._held -= units
        left = self._by_user[user] - units
        if left:
            self._by_user[user] = left
        else:
            del self._by_user[user]


class Reservation:
    """Units that one request holds. As a context manager, it releases them when the block ends."""

    __slots__ = ("_admission", "_owner", "_units")

    def __init__(self, admission: Admission, owner: Owner) -> None:
        self._admission = admission
        self._owner = owner
        self._units = 0

    @property
    def units(self) -> int:
        """Units that are held now."""
        return self._units

    def add(self, units: int) -> Self:
        """Reserve `units` more.

        Raises:
            ApiError: 429 or 503 if the quota does not allow them.
        """
        self._admission.acquire(self._owner, units)
        self._units += units
        return self

    def resize(self, units: int) -> None:
        """Hold exactly `units`: reserve missing units, or release surplus ones.

        Raises:
            ApiError: as from `add`; what was held before stays held.
        """
        if units > self._units:
            self.add(units - self._units)
        elif units < self._units:
            self._admission.release(self._owner, self._units - units)
            self._units = units

    def release(self) -> None:
        """Release all units. Calling this again has no effect."""
        if self._units:
            self._admission.release(self._owner, self._units)
            self._units = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.release()
