"""Who asks, and what they may see."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from .owner import Owner

Action = Literal["create", "read", "update", "delete"]
Kind = Literal["response", "conversation"]


class Access(Protocol):
    """The host's answer to both questions, for the request that is being served."""

    def who(self) -> Owner:
        """The user who asks."""
        ...

    def keys(self) -> Mapping[str, Any]:
        """The keys of their own that this user sent for providers, which must not be stored in the clear."""
        ...

    def acting_for(self, owner: Owner, keys: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Has the host take this user, with these keys, for the one who asks: for work behind their request."""
        ...

    def allows(self, action: Action, kind: Kind, identifier: str, owner: Owner) -> bool:
        """Whether that user may do this to a response or a conversation of `owner`."""
        ...
