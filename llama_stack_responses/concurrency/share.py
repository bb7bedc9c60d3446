"""For whom work is done: its share of what all users of a server wait for.

The share belongs to the context of a task, as the trace does, so work on behalf of a user counts as theirs wherever it
has to wait, and in all tasks that are created for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from opentelemetry import context

from ..core.owner import ANONYMOUS, Owner
from ..logs import Attached

_SHARE: Final = context.create_key("llama_stack_responses.share")


@dataclass(frozen=True, slots=True)
class Share:
    """A user's share.

    Attributes:
        user: identifies the user, as `Owner.identity` does; None for work of the server itself.
        weight: how much the user gets in comparison with others who wait too.
    """

    user: Hashable
    weight: float = 1.0

    @property
    def may_have_all(self) -> bool:
        """Whether limits for each user do not apply: to the server, and to all users without authentication."""
        return self.user is None or self.user == ANONYMOUS.identity


ShareOf = Callable[[Owner], Share]
"""Returns the share of a user."""

_OF_SERVER: Final = Share(None)


def equal_share(user: Owner) -> Share:
    """Return the share of a user if all are equal."""
    return Share(user.identity)


def current_share() -> Share:
    """Return whose work the current task does; that of the server itself if nothing was said."""
    share = context.get_value(_SHARE)
    return share if isinstance(share, Share) else _OF_SERVER


def working_for(share: Share) -> Attached:
    """Count the work within the block, and that of tasks created there, as this user's."""
    return Attached(context.set_value(_SHARE, share))
