"""Whose usage a user may read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from ...config.roles import Roles
from ...core.owner import Owner
from .counted import Dimensions, counted_identity, counted_value


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
        return Seen(self.only_user(reader), self._shown_to(reader), () if reader.is_anonymous else needs)

    def _shown_to(self, reader: Owner) -> Callable[[Dimensions], bool]:
        """Return what tells whether a user may read usage."""
        tenant, user = counted_identity(reader)
        sees_tenant, team = self.roles.is_operator(reader), counted_value(self.roles.leads(reader))

        def shows(usage: Dimensions) -> bool:
            is_of_team = bool(team) and usage.team == team
            return usage.tenant == tenant and (sees_tenant or usage.user == user or is_of_team)

        return (lambda _: True) if reader.is_anonymous else shows
