"""Names by which the model calls what the client knows by other names, or by none."""

from __future__ import annotations

import re
from collections.abc import Container
from hashlib import sha256
from typing import Final

_OTHERS: Final = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST: Final = 64
"""Characters of a function's name that every chat API takes."""


def chat_name(namespace: str | None, name: str) -> str:
    """The name of a function of a namespace; without one, the name itself, which the client chose for the model."""
    if namespace is None:
        return name
    joined = _OTHERS.sub("_", f"{namespace}__{name}")
    if len(joined) <= _LONGEST:
        return joined
    # The end of a name says more than its beginning, which all names of a namespace share.
    digest = sha256(f"{namespace}/{name}".encode()).hexdigest()[:8]
    return f"{joined[: _LONGEST - 42]}_{digest}_{joined[-32:]}"


def free_name(name: str, taken: Container[str]) -> str:
    """The name, or one like it that is not taken."""
    number, free = 2, name
    while free in taken:
        ending = f"_{number}"
        number, free = number + 1, name[: _LONGEST - len(ending)] + ending
    return free
