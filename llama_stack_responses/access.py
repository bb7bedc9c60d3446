"""Who asks, and what they may see."""

from __future__ import annotations

from typing import Literal, Protocol

from .core.owner import Owner

Action = Literal["create", "read", "update", "delete"]


class Access(Protocol):
    """The host's answer to both questions, for the request that is being served."""

    def who(self) -> Owner:
        """The user who asks."""
        ...

    def allows(self, action: Action, response_id: str, owner: Owner) -> bool:
        """Whether that user may do this to a response of `owner`."""
        ...
