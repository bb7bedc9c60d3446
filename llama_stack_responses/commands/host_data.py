"""What the host keeps for users, for the commands that export and delete all that a user has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..core.owner import Owner
from ..store.feature_store import OwnedObjects


@dataclass(frozen=True, slots=True)
class HostData:
    """The files, prompts and chats of a stack.

    Attributes:
        kinds: what can be listed, exported and deleted for a user.
        left: a sentence for each kind that cannot.
    """

    kinds: Sequence[OwnedObjects] = ()
    left: Sequence[str] = ()


class OpenHostData(Protocol):
    """Opens what the host keeps for users in the stack with this configuration."""

    def __call__(self, config: Path, owner: Owner) -> AbstractAsyncContextManager[HostData]:
        """Open it within the event loop that uses it.

        Raises:
            CommandError: the configuration is wrong, or a provider of the host cannot be opened.
        """
        ...
