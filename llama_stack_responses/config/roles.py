"""Which users are operators, and who leads a team."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from ..core.owner import Owner

type Attributes = dict[str, list[str]]


class Roles(BaseModel):
    """Users with more rights than others, by attributes that the host's auth gives them, such as `{roles: [admin]}`.

    Attributes:
        operator: attributes with the values that make a user an operator, who may read, list, cancel and delete what
            all users of the same tenant have stored, and manage keys, below `/v1/admin`. By default there are none.
        team_lead: attributes with the values that let a user see and manage the keys of their own team. By default,
            none do.
        audit_days: days for which the audit log keeps what they did, and what was refused.
    """

    model_config = ConfigDict(extra="forbid")

    operator: Attributes = Field(default_factory=dict)
    team_lead: Attributes = Field(default_factory=dict)
    audit_days: float = Field(default=365.0, gt=0, le=36_500)

    @property
    def audit_seconds(self) -> float:
        """The time for which the audit log keeps an entry."""
        return self.audit_days * 86_400

    @property
    def any(self) -> bool:
        """Whether some users may have more rights than others."""
        return bool(self.operator or self.team_lead)

    def is_operator(self, user: Owner) -> bool:
        """Return whether a user is an operator."""
        return _has_one(user, self.operator)

    def sees_server(self, user: Owner) -> bool:
        """Return whether a user sees data of the whole server: operators, and every user without authentication."""
        return user.is_anonymous or self.is_operator(user)

    def leads(self, user: Owner) -> str:
        """Return the team that a user leads; empty for none."""
        return user.team if _has_one(user, self.team_lead) else ""


def _has_one(user: Owner, wanted: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a user has one of the values of one of these attributes."""
    # Without authentication there are no users to tell apart.
    return not user.is_anonymous and any(
        value in (user.attributes.get(name) or ()) for name, values in wanted.items() for value in values
    )
