"""Settings that are lists, which an environment variable has as a text with commas."""

from __future__ import annotations

from typing import Any


def listed(given: Any) -> Any:
    """Return the entries of a list, or those of a text with commas; none for null."""
    if given is None:
        return []
    return [each for part in given.split(",") if (each := part.strip())] if isinstance(given, str) else given
