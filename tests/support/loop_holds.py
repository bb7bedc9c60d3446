"""What a live stack says of its event loop: for how long it was held, and by what."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(
    r"the event loop (?:was held for|is held for more than) ([\d.]+) s[,:] (.*?\(in \d+ of \d+ samples\)|.{0,600})"
)

GRACE = 0.5
"""Seconds within which a hold that has ended is in the log."""


@dataclass(frozen=True, slots=True)
class Held:
    """A hold: its duration, and what was done."""

    seconds: float
    by: str


class LoopHolds:
    """Reads a stack's log from where it ends now."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._begin = log.stat().st_size

    def read(self) -> list[Held]:
        """The holds so far, the longest first."""
        time.sleep(GRACE)
        with self._log.open("rb") as log:
            log.seek(self._begin)
            said = " ".join(log.read().decode(errors="replace").split())  # the host wraps its lines
        found = [Held(float(seconds), by) for seconds, by in _LINE.findall(said)]
        return sorted(found, key=lambda each: each.seconds, reverse=True)

    def assert_none_above(self, seconds: float) -> None:
        """Fails with what held the loop for longer."""
        assert [each for each in self.read() if each.seconds > seconds] == []
