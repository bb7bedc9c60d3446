"""How far a command is, on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

_SECONDS: Final = 0.5
"""Seconds between two counts."""


class ProgressLine:
    """Counts what is done, in a line on standard error that is removed at the end. Without a terminal, prints nothing.

    Args:
        what: what is counted, in the plural.
        total: their number, if it is known.
        clock: returns seconds.
    """

    def __init__(self, what: str, total: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what if total is None else f"of {total:,} {what}"
        self._clock = clock
        self._shown = sys.stderr.isatty()
        self._count = 0
        self._next = clock() + _SECONDS

    def __enter__(self) -> Self:
        """Return this count."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Remove the line."""
        self._print("")

    def add(self, count: int = 1) -> None:
        """Count these, and print the number if the last one is old."""
        self._count += count
        if self._shown and self._clock() >= self._next:
            self._next = self._clock() + _SECONDS
            self._print(f"{self._count:,} {self._what}")

    def show(self, line: str) -> None:
        """Print this line in place of the last one."""
        self._print(line)

    def _print(self, line: str) -> None:
        if self._shown:
            print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
