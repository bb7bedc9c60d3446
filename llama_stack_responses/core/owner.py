"""The owner of a stored record: the caller of the request that created it, with their roles, team and key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ANONYMOUS", "Owner"]


@dataclass(frozen=True, slots=True)
class Owner:
    """The user who created a record, as the host authenticated them.

    Their team, key and roles are read from the attributes, and so are stored with each record and each job.

    Attributes:
        principal: the user's name; empty for the single anonymous owner of a stack without authentication.
        attributes: the user's groups, such as `{"teams": ["search"]}`. The first of `teams` is the user's team, the
            first of `keys` the id of the key of the request; `roles` are all roles, `models` those that the user may
            use, and `limits` those of that key.
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

    @property
    def team(self) -> str:
        """The user's team; empty if they have none."""
        return self._first("teams")

    @property
    def key(self) -> str:
        """The id of the key with which the request was authenticated; empty if it was by another way."""
        return self._first("keys")

    @property
    def roles(self) -> Sequence[str]:
        """The user's roles."""
        return self.attributes.get("roles") or ()

    @property
    def limits(self) -> Sequence[str]:
        """The limits of the key of the request itself, each as `requests_per_minute=60`."""
        return (self.attributes.get("limits") or ()) if self.key else ()

    @property
    def models(self) -> Sequence[str]:
        """The models that the user may use, where `*` at the end stands for any rest; empty for all."""
        return self.attributes.get("models") or ()

    def _first(self, attribute: str) -> str:
        values = self.attributes.get(attribute)
        return values[0] if values else ""

    def encode(self) -> list[Any]:
        """Return the owner as JSON, for `Owner(*stored)`."""
        return [self.principal, dict(self.attributes), self.tenant]


ANONYMOUS = Owner()
