"""The host's users and access policy."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from llama_stack_responses.core.access import Action, Kind
from llama_stack_responses.core.owner import ANONYMOUS, Owner

from .platform import (
    PROVIDER_DATA_VAR,
    AccessRule,
    RequestProviderDataContext,
    User,
    get_authenticated_user,
    is_action_allowed,
)

_USER: Final = "__authenticated_user"
"""Where among the provider data the host keeps who asks."""

RESOURCE_TYPES: Final[Mapping[Kind, str]] = {
    "response": "sql_record::responses",
    "conversation": "sql_record::openai_conversations",
}
"""What the host itself calls responses and conversations in access policies: existing policies go on to hold."""


@dataclass(frozen=True)
class _Resource:
    """A response or a conversation, as the host's policy sees it."""

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
        # Only OGX tells tenants apart.
        return (
            Owner(user.principal, user.attributes or {}, getattr(user, "tenant_id", None) or "") if user else ANONYMOUS
        )

    def keys(self) -> Mapping[str, Any]:
        """The request's provider data."""
        data: Any = PROVIDER_DATA_VAR.get()
        # What the header holds need not be an object.
        return {name: value for name, value in data.items() if name != _USER} if isinstance(data, dict) else {}

    def acting_for(self, owner: Owner, keys: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Sets the host's user, if there is auth, and provider data for this context."""
        context: AbstractContextManager[None] = RequestProviderDataContext(dict(keys), _host_user(owner))
        return context

    def allows(self, action: Action, kind: Kind, identifier: str, owner: Owner) -> bool:
        """What the policy says of what is in the same tenant; without auth everything is allowed."""
        if owner.tenant != self.who().tenant:
            return False
        resource = _Resource(RESOURCE_TYPES[kind], identifier, _host_user(owner))
        return bool(is_action_allowed(self._policy, action, resource, _user()))


def _host_user(owner: Owner) -> User | None:
    if owner == ANONYMOUS:
        return None
    attributes = {name: list(values) for name, values in owner.attributes.items()}
    tenant = {"tenant_id": owner.tenant} if owner.tenant else {}
    return User(owner.principal, attributes, **tenant)


def _user() -> User | None:
    user = get_authenticated_user()
    # Without auth, a client's provider data can put anything in the user's place.
    return user if isinstance(user, User) else None
