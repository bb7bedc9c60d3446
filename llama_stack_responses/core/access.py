"""The requesting user, and what that user may access."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from .owner import Owner

Action = Literal["create", "read", "update", "delete"]
Kind = Literal["response", "conversation"]


@dataclass(frozen=True, slots=True)
class AcceptedToken:
    """A token that was accepted.

    Attributes:
        user: the user that it authenticates.
        seconds: time until it expires; None for never.
    """

    user: Owner
    seconds: float | None = None


Authenticate = Callable[[str], Awaitable[AcceptedToken | None]]
"""Returns what is known of a token; None if it is refused. Raises `ApiError` 503 if that cannot be told now."""


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
