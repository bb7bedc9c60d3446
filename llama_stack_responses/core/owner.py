"""Whose a stored thing is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Owner:
    """The user who made a response, as the host authenticated them.

    Attributes:
        principal: the user's name; empty for the one anonymous owner of a stack without auth.
        attributes: the user's groups, such as `{"teams": ["search"]}`.
        tenant: whose user that is, where the host tells tenants apart; the same name is another user elsewhere.
    """

    principal: str = ""
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tenant: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """Who it is, whatever their groups are at the moment: what limits for each owner count by."""
        return self.tenant, self.principal

    @property
    def is_anonymous(self) -> bool:
        """Whether it is the one owner of a stack without authentication."""
        return not self.principal

    def encode(self) -> list[Any]:
        """The owner as JSON, for `Owner(*stored)`."""
        return [self.principal, dict(self.attributes), self.tenant]


ANONYMOUS = Owner()
