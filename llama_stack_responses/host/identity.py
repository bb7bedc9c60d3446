"""The host's users, with their attributes as they are, and its access policy."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from ..core.access import Action, Kind
from ..core.json_blocks import ordered_dumps
from ..core.owner import ANONYMOUS, Owner
from .platform import (
    PROVIDER_DATA_VAR,
    AccessRule,
    RequestProviderDataContext,
    User,
    get_authenticated_user,
    is_action_allowed,
)

_USER: Final = "__authenticated_user"
"""Key under which the host keeps the authenticated user in the provider data."""

RESOURCE_TYPES: Final[Mapping[Kind, str]] = {
    "response": "sql_record::responses",
    "conversation": "sql_record::openai_conversations",
}
"""The host's own names of responses and conversations in access policies, so that existing policies still apply."""


@dataclass(frozen=True)
class _Resource:
    """A response or a conversation in the form that the host's policy expects."""

    type: str
    identifier: str
    owner: User | None


class HostAccess:
    """Identifies the user, and checks the access policy, through the host.

    Args:
        policy: the stack's `server.auth.access_policy`; empty for the host's default policy.
    """

    def __init__(self, policy: list[AccessRule]) -> None:
        self._policy = policy

    def current_user(self) -> Owner:
        """Return the authenticated user, or the anonymous owner of a stack without authentication."""
        return owner_of(_user())

    def provider_credentials(self) -> Mapping[str, Any]:
        """Return the request's provider data."""
        data: Any = PROVIDER_DATA_VAR.get()
        # The header may hold JSON that is not an object.
        return {name: value for name, value in data.items() if name != _USER} if isinstance(data, dict) else {}

    def requester_key(self) -> bytes:
        """Return what differs between requests with different users or provider data, without revealing them."""
        owner = self.current_user().identity
        return sha256(ordered_dumps([owner, self.provider_credentials()])).digest()

    def acting_for(self, owner: Owner, keys: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Set the host's user, if there is authentication, and the provider data for this context."""
        context: AbstractContextManager[None] = RequestProviderDataContext(dict(keys), _host_user(owner))
        return context

    def allows(self, action: Action, kind: Kind, identifier: str, owner: Owner) -> bool:
        """Return whether the policy allows an action on a resource of the same tenant.

        Without authentication, everything is allowed.
        """
        if owner.tenant != self.current_user().tenant:
            return False
        resource = _Resource(RESOURCE_TYPES[kind], identifier, _host_user(owner))
        return bool(is_action_allowed(self._policy, action, resource, _user()))


def owner_of(user: User | None) -> Owner:
    """Return the host's user as an owner; the anonymous one if there is none."""
    # Only OGX has tenants.
    return Owner(user.principal, user.attributes or {}, getattr(user, "tenant_id", None) or "") if user else ANONYMOUS


def _host_user(owner: Owner) -> User | None:
    if owner == ANONYMOUS:
        return None
    attributes = {name: list(values) for name, values in owner.attributes.items()}
    tenant = {"tenant_id": owner.tenant} if owner.tenant else {}
    return User(owner.principal, attributes, **tenant)


def _user() -> User | None:
    user = get_authenticated_user()
    # Without authentication, a client can set any value under the user's key in its provider data.
    return user if isinstance(user, User) else None
