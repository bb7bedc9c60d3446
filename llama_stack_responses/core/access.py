"""The requesting user, and what that user may access."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from .owner import Owner

Action = Literal["create", "read", "update", "delete"]
Kind = Literal["response", "conversation"]


class Access(Protocol):
    """Authentication and authorization by the host, for the request that is being served."""

    def current_user(self) -> Owner:
        """Return the requesting user."""
        ...

    def provider_credentials(self) -> Mapping[str, Any]:
        """Return the user's own provider keys from the request, which must not be stored in plain text."""
        ...

    def acting_for(self, owner: Owner, keys: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Have the host treat this user, with these keys, as the requesting one: for work that outlives a request."""
        ...

    def allows(self, action: Action, kind: Kind, identifier: str, owner: Owner) -> bool:
        """Return whether the requesting user may do this to a response or a conversation of `owner`."""
        ...
