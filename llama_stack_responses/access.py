"""Who asks, and what they may see."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal, Protocol

from .core.owner import Owner

Action = Literal["create", "read", "update", "delete"]


class Access(Protocol):
    """The host's answer to both questions, for the request that is being served."""

    def who(self) -> Owner:
        """The user who asks."""
        ...

    def brings_keys(self) -> bool:
        """Whether that user sent keys of their own for providers, which must not be stored."""
        ...

    def acting_for(self, owner: Owner) -> AbstractContextManager[None]:
        """Has the host take this user for the one who asks: for work that goes on behind their request."""
        ...

    def allows(self, action: Action, response_id: str, owner: Owner) -> bool:
        """Whether that user may do this to a response of `owner`."""
        ...
