"""Sections of the cards that the view of what runs now shows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from .types import Json

_MINUTE_SECONDS: Final = 60


def section(
    title: str,
    facts: Iterable[str],
    *,
    at: float | None = None,
    trouble: str | None = None,
    columns: Sequence[str] = (),
    rows: Iterable[Sequence[str]] = (),
    entry: Json | None = None,
) -> Json:
    """Return a section of a `Card`.

    Args:
        title: its subject.
        facts: what is said of it, in a few words each; empty ones are left out.
        at: when that was found out, in seconds since the epoch; now if None, and 0 if it was not found out yet.
        trouble: what is wrong, as a sentence.
        columns, rows: its table.
        entry: an entry of the configuration.
    """
    return {
        "title": title,
        "at": time.time() if at is None else at,
        "facts": [fact for fact in facts if fact],
        "trouble": trouble or None,
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "entry": entry,
    }


def span(seconds: float) -> str:
    """Return a time in the unit that people would use."""
    if seconds < _MINUTE_SECONDS:
        return f"{seconds:.0f} s"
    minutes, _ = divmod(int(seconds), _MINUTE_SECONDS)
    hours, minutes = divmod(minutes, _MINUTE_SECONDS)
    if hours < 48:
        return f"{hours} h {minutes} min" if hours else f"{minutes} min"
    return f"{hours // 24} days"


def size(count: float) -> str:
    """Return a number of bytes in the unit that people would use."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
