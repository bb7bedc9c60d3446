"""Compare what versions read from one store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

ADDED: Final[frozenset[str]] = frozenset()
"""Fields of stored objects, of responses and of events that versions after 0.1.0 added."""


def differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield where `now` lacks or changes something of `before`, or adds what is not in `ADDED`."""
    if isinstance(before, dict) and isinstance(now, dict):
        yield from (f"{path}/{name} is gone" for name in before.keys() - now.keys())
        yield from (f"{path}/{name} is new" for name in now.keys() - before.keys() - ADDED)
        for name in before.keys() & now.keys():
            yield from differences(before[name], now[name], f"{path}/{name}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{path}/{number}")
    elif before != now:
        yield f"{path} was {before!r} and is {now!r}"
