"""The times for which limits count: minutes, days and months of UTC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final


@dataclass(frozen=True, slots=True)
class Window:
    """A kind of windows.

    Attributes:
        name: its name, such as `minute`.
        end: returns when the window of a time ends, in seconds since the epoch.
        share: the largest part of a limit that a server takes at once.
        longest: seconds that a window has at most.
    """

    name: str
    end: Callable[[float], int]
    share: float
    longest: int


def _of(seconds: int) -> Callable[[float], int]:
    def end(now: float) -> int:
        return (int(now) // seconds + 1) * seconds

    return end


def _month(now: float) -> int:
    first = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return int(following.timestamp())


MINUTE: Final = Window("minute", _of(60), 1 / 20, 60)
DAY: Final = Window("day", _of(86_400), 1 / 200, 86_400)
MONTH: Final = Window("month", _month, 1 / 200, 31 * 86_400)
