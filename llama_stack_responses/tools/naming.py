"""Function names for the model."""

from __future__ import annotations

import re
from collections.abc import Container
from hashlib import sha256
from typing import Final

_OTHERS: Final = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST: Final = 64
"""Maximum length of a function name that every chat API accepts."""


def chat_name(namespace: str | None, name: str) -> str:
    """Return a function's name for the model: joined with its namespace or, without one, as the client chose it."""
    if namespace is None:
        return name
    joined = _OTHERS.sub("_", f"{namespace}__{name}")
    if len(joined) <= _LONGEST:
        return joined
    # The end of a name is more specific than its beginning, which all names of a namespace share.
    digest = sha256(f"{namespace}/{name}".encode()).hexdigest()[:8]
    return f"{joined[: _LONGEST - 42]}_{digest}_{joined[-32:]}"


def free_name(name: str, taken: Container[str]) -> str:
    """Return the name, with a number appended if it is taken."""
    number, free = 2, name
    while free in taken:
        ending = f"_{number}"
        number, free = number + 1, name[: _LONGEST - len(ending)] + ending
    return free
