"""The owner of a response in log lines and spans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from ..core.owner import Owner
from ..store.content_names import Hasher

type LogOwner = Literal["off", "hashed", "named"]
type NameOwner = Callable[[Owner], dict[str, str]]
"""Returns the names that `about` adds to the log lines about a response of an owner."""

_CHARACTERS: Final = 200


def no_owner(_: Owner) -> dict[str, str]:
    """Add nothing."""
    return {}


def _hashed(owner: Owner) -> dict[str, str]:
    return {} if owner.is_anonymous else {"owner": Hasher(owner).owner}


def _named(owner: Owner) -> dict[str, str]:
    name = f"{owner.principal} ({owner.tenant})" if owner.tenant else owner.principal
    shown = "".join(letter if letter.isprintable() else "?" for letter in name[:_CHARACTERS])
    return {} if owner.is_anonymous else {"owner": shown}


def name_owner(setting: LogOwner) -> NameOwner:
    """Return what the setting `log_owner` says."""
    return {"off": no_owner, "hashed": _hashed, "named": _named}[setting]
