"""The owner of a stored record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ANONYMOUS", "Owner"]


@dataclass(frozen=True, slots=True)
class Owner:
    """The user who created a record, as the host authenticated them.

    Attributes:
        principal: the user's name; empty for the single anonymous owner of a stack without authentication.
        attributes: the user's groups, such as `{"teams": ["search"]}`.
        tenant: the user's tenant, if the host has tenants; equal names of two tenants are different users.
    """

    principal: str = ""
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tenant: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """The tenant and the name, without the groups, which may change: the key of limits per owner."""
        return self.tenant, self.principal

    @property
    def is_anonymous(self) -> bool:
        """Whether it is the single owner of a stack without authentication."""
        return not self.principal

    def encode(self) -> list[Any]:
        """Return the owner as JSON, for `Owner(*stored)`."""
        return [self.principal, dict(self.attributes), self.tenant]


ANONYMOUS = Owner()
