"""The host's users and access policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llama_stack_responses.access import Action
from llama_stack_responses.core.owner import ANONYMOUS, Owner

from .platform import AccessRule, User, get_authenticated_user, is_action_allowed

RESOURCE_TYPE: Literal["sql_record::responses"] = "sql_record::responses"
"""What the host's own provider calls a response in access policies, so that existing policies go on to hold."""


@dataclass(frozen=True)
class _Resource:
    """A response, as the host's policy sees it."""

    type: str
    identifier: str
    owner: User | None


class HostAccess:
    """Asks the host who the user is and what its access policy allows.

    Args:
        policy: the stack's `server.auth.access_policy`; empty for the host's default policy.
    """

    def __init__(self, policy: list[AccessRule]) -> None:
        self._policy = policy

    def who(self) -> Owner:
        """The authenticated user, or the one anonymous owner of a stack without auth."""
        user = _user()
        return Owner(user.principal, user.attributes or {}) if user else ANONYMOUS

    def allows(self, action: Action, response_id: str, owner: Owner) -> bool:
        """What the policy says; without auth everything is allowed."""
        attributes = {name: list(values) for name, values in owner.attributes.items()}
        user = User(owner.principal, attributes) if owner != ANONYMOUS else None
        resource = _Resource(RESOURCE_TYPE, response_id, user)
        return bool(is_action_allowed(self._policy, action, resource, _user()))


def _user() -> User | None:
    user = get_authenticated_user()
    # Without auth, a client's provider data can put anything in the user's place.
    return user if isinstance(user, User) else None
