"""Whose usage a user may read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ...config.roles import Roles
from ...core.owner import Owner
from .counted import Dimensions


class Seen(NamedTuple):
    """Whose usage a reader sees.

    Attributes:
        user: the only user whose usage is read; None if there may be several.
        shows: returns whether the reader may read usage.
        needs: the names of the dimensions on which `shows` depends if there may be several users.
    """

    user: Owner | None
    shows: Callable[[Dimensions], bool]
    needs: Collection[str]


@dataclass(frozen=True, slots=True)
class Visibility:
    """Whose usage users may read: their own, leads that of their team, and operators that of their tenant.

    Without authentication there is one user, who reads all.

    Attributes:
        roles: who leads a team or is an operator.
    """

    roles: Roles

    def only_user(self, reader: Owner) -> Owner | None:
        """Return the only user whose usage is read; None if there may be several."""
        sees_others = reader.is_anonymous or self.roles.is_operator(reader) or self.roles.leads(reader)
        return None if sees_others else reader

    def seen_by(self, reader: Owner) -> Seen:
        """Return whose usage a user sees."""
        needs = ("tenant",) if self.roles.is_operator(reader) else ("tenant", "user", "team")
        return Seen(self.only_user(reader), partial(self.shows, reader), () if reader.is_anonymous else needs)

    def shows(self, reader: Owner, usage: Dimensions) -> bool:
        """Return whether a user may read this usage."""
        if reader.is_anonymous:
            return True
        if usage.tenant != reader.tenant:
            return False
        if usage.user == reader.principal or self.roles.is_operator(reader):
            return True
        return bool(usage.team) and usage.team == self.roles.leads(reader)
