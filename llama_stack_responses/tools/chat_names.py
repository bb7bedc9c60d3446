"""Function names for the model."""

from __future__ import annotations

import re
from collections.abc import Container
from hashlib import sha256
from typing import Final

_OTHERS: Final = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_CHARACTERS: Final = 64
"""Maximum length of a function name that every chat API accepts."""
_STEM_CHARACTERS: Final = _NAME_CHARACTERS - 6
"""Characters of a name that stay before any number."""


def chat_name(namespace: str | None, name: str) -> str:
    """Return a function's name for the model: joined with its namespace or, without one, as the client chose it."""
    if namespace is None:
        return name
    joined = _OTHERS.sub("_", f"{namespace}__{name}")
    if len(joined) <= _NAME_CHARACTERS:
        return joined
    # The end of a name is more specific than its beginning, which all names of a namespace share.
    digest = sha256(f"{namespace}/{name}".encode()).hexdigest()[:8]
    return f"{joined[: _NAME_CHARACTERS - 42]}_{digest}_{joined[-32:]}"


def free_name(name: str, names: Container[str], numbers: dict[str, int]) -> str:
    """Return the name, with a number appended if it is taken.

    Args:
        name: the name.
        names: the names that are taken.
        numbers: the last number for each beginning of a name, kept from call to call. Without it, a thousand functions
            of one name would try half a million names.
    """
    free, stem = name, name[:_STEM_CHARACTERS]
    while free in names:
        numbers[stem] = number = numbers.get(stem, 1) + 1
        ending = f"_{number}"
        free = name[: _NAME_CHARACTERS - len(ending)] + ending
    return free
