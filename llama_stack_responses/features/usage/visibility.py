"""Whose usage a user may read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...core.owner import Owner
from .counted import Dimensions


@dataclass(frozen=True, slots=True)
class Visibility:
    """Whose usage users may read: their own, by a role that of their team, and by another one that of their tenant.

    Without authentication there is one user, who reads all.

    Attributes:
        reader_roles: roles of those who read the usage of all users of their tenant.
        lead_roles: roles of those who read the usage of their team.
    """

    reader_roles: Collection[str]
    lead_roles: Collection[str]

    def only_user(self, reader: Owner) -> tuple[str, str] | None:
        """Return the tenant and the name of the only user whose usage is read; None if there may be several."""
        return None if reader.is_anonymous or self._reads_all(reader) or self._leads(reader) else reader.identity

    def shows(self, reader: Owner, usage: Dimensions) -> bool:
        """Return whether a user may read this usage."""
        if reader.is_anonymous:
            return True
        if usage.tenant != reader.tenant:
            return False
        if self._reads_all(reader) or usage.user == reader.principal:
            return True
        return self._leads(reader) and usage.team == reader.team

    def _reads_all(self, reader: Owner) -> bool:
        return any(role in self.reader_roles for role in reader.roles)

    def _leads(self, reader: Owner) -> bool:
        return bool(reader.team) and any(role in self.lead_roles for role in reader.roles)
