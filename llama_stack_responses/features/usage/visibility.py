"""Whose usage a user may read."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.roles import Roles
from ...core.owner import Owner
from .counted import Dimensions


@dataclass(frozen=True, slots=True)
class Visibility:
    """Whose usage users may read: their own, leads that of their team, and operators that of their tenant.

    Without authentication there is one user, who reads all.

    Attributes:
        roles: who leads a team or is an operator.
    """

    roles: Roles

    def only_user(self, reader: Owner) -> tuple[str, str] | None:
        """Return the tenant and the name of the only user whose usage is read; None if there may be several."""
        sees_others = reader.is_anonymous or self.roles.is_operator(reader) or self.roles.leads(reader)
        return None if sees_others else reader.identity

    def shows(self, reader: Owner, usage: Dimensions) -> bool:
        """Return whether a user may read this usage."""
        if reader.is_anonymous:
            return True
        if usage.tenant != reader.tenant:
            return False
        if usage.user == reader.principal or self.roles.is_operator(reader):
            return True
        return bool(usage.team) and usage.team == self.roles.leads(reader)
