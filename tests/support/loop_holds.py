"""The event loop delays that a live stack logs: their duration and cause."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

# A line without samples must not reach into the next one.
_OF_THIS_LINE = r"(?:(?!event loop ).)"
_LINE = re.compile(
    r"event loop (?:was blocked for|blocked for more than) ([\d.]+) s[,:] "
    rf"({_OF_THIS_LINE}{{0,2000}}?\(in \d+ of \d+ samples\)|{_OF_THIS_LINE}{{0,600}})"
)

GRACE = 0.5
"""Seconds until an ended delay is in the log."""

_SAMPLED_EVERY = 0.1
"""Seconds; the monitor takes a sample of a blocked loop more often if it runs."""


@dataclass(frozen=True, slots=True)
class LoopDelay:
    """A delay: its duration and cause."""

    seconds: float
    by: str

    @property
    def is_of_machine(self) -> bool:
        """Whether the loop waited for a new thread that got no processor, while other threads ran as usual.

        The hosts open a connection of aiosqlite, which is a thread, for each read of their registries. On a busy
        machine, a new thread may wait for half a second. If a thread held the interpreter lock meanwhile, samples of
        the loop's stack would be missing.
        """
        samples = re.search(r"in \d+ of (\d+) samples", self.by)
        is_sampled = samples is not None and int(samples[1]) >= self.seconds / _SAMPLED_EVERY
        return is_sampled and self.by.startswith("waiting") and "Thread.start" in self.by


class LoopHolds:
    """A reader of a stack's log, from its current end."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._begin = log.stat().st_size

    def read(self) -> list[LoopDelay]:
        """Return the delays so far, the longest first."""
        time.sleep(GRACE)
        with self._log.open("rb") as log:
            log.seek(self._begin)
            output = " ".join(log.read().decode(errors="replace").split())  # the host wraps its lines
        found = [LoopDelay(float(seconds), by) for seconds, by in _LINE.findall(output)]
        return sorted(found, key=lambda each: each.seconds, reverse=True)

    def assert_none_above(self, seconds: float) -> None:
        """Fail if a delay was longer, and show its cause."""
        longer = [each for each in self.read() if each.seconds > seconds and not each.is_of_machine]
        assert not longer, longer
