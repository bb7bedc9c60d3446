"""Report when the event loop was blocked, for how long, and by which code.

A heartbeat in the loop measures its own lateness. A thread samples the loop's stack while a heartbeat is overdue. The
loop does not count as blocked while its thread waits for a processor, or while the whole process is stopped. The first
is read from the kernel's scheduler statistics; in the second case, neither this thread nor the loop's ran.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

from ..logs import get_logger

logger = get_logger(__name__)

_LONG_SECONDS: Final = 10.0
"""Seconds after which a blocked period is reported although it has not ended."""

_BURST_LINES: Final = 20
_REFILL_SECONDS: Final = 3.0
"""Lines that may be logged in a burst, and seconds until one more is allowed."""

_REPORTED_FRAMES: Final = 8
"""Maximum number of innermost shared frames that are reported."""

_MAX_FRAMES: Final = 200
_MAX_SAMPLES: Final = 200
"""Limits on the record of a blocked period: frames of a sample, and samples."""

_OUTERMOST: Final = "Handle._run"
"""asyncio's function that runs the loop's callbacks."""

_PATH_PARTS: Final = 3
"""Number of last parts of a file's path that are reported."""


type Stack = list[tuple[str, int]]
"""Frames, the outermost first: `file function`, and its current line."""


@dataclass(frozen=True, slots=True)
class BlockedPeriod:
    """A period in which the event loop was blocked.

    Attributes:
        seconds: its duration.
        ran: whether the loop's thread computed rather than waited.
        stack: the innermost frames, `file:line function`, that half of the samples share; empty without samples.
        fraction: how many samples share them, such as `3 of 4`.
    """

    seconds: float
    ran: bool
    stack: str = ""
    fraction: str = ""

    def __str__(self) -> str:
        doing = "running" if self.ran else "waiting"
        where = f"{doing} {self.stack} (in {self.fraction} samples)" if self.stack else f"{doing}, no sample was taken"
        return f"{self.seconds:.3f} s, {where}"


class EventLoopMonitor:
    """Monitors one event loop.

    Args:
        threshold: seconds from which a blocked period is reported.
        on_delay: called in the loop with the lateness in seconds of each heartbeat, several times per second.
        on_blocked: called in the loop with the seconds of each blocked period.
        report_after: report a block that has lasted this many seconds before it ends.
    """

    def __init__(
        self,
        threshold: float,
        on_delay: Callable[[float], None],
        on_blocked: Callable[[float], None],
        report_after: float = _LONG_SECONDS,
    ) -> None:
        self._report_after = report_after
        self._threshold = threshold
        self._interval = threshold / 2
        self._on_delay = on_delay
        self._on_blocked = on_blocked
        self._periods: SimpleQueue[BlockedPeriod] = SimpleQueue()
        self._samples: list[Stack] = []
        self._alive = 0.0
        self._running = threading.Event()

    def start(self) -> None:
        """Start monitoring the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._queued = _QueuedTime(threading.get_native_id())
        self._begin()
        self._running.set()
        threading.Thread(target=self._watch, name="event-loop-monitor", daemon=True).start()

    def stop(self) -> None:
        """Stop monitoring."""
        if self._running.is_set():
            self._running.clear()
            self._timer.cancel()
            self._queued.close()

    def _begin(self) -> None:
        self._samples = []
        self._last = time.monotonic()
        self._before = (time.thread_time(), self._queued.seconds(), self._alive)
        self._timer = self._loop.call_later(self._interval, self._beat)

    def _beat(self) -> None:
        late = time.monotonic() - self._last - self._interval
        if late > self._threshold:
            cpu, queued, alive = self._before
            ran, waited = time.thread_time() - cpu, self._queued.seconds() - queued
            late = blocked_seconds(late, ran, waited, self._alive - alive)
            if late > self._threshold:
                self._on_blocked(late)
                self._periods.put(BlockedPeriod(late, ran > late / 2, *_common_frames(self._samples)))
        self._on_delay(max(late, 0.0))
        self._begin()

    def _watch(self) -> None:
        lines = _Lines()
        reported = 0.0
        while self._running.is_set() and not self._loop.is_closed():
            began = time.monotonic()
            time.sleep(self._interval)
            now, last = time.monotonic(), self._last
            if now - began < self._threshold:
                # After a longer sleep, this thread itself was stopped, and cannot judge the loop.
                self._alive += now - began
            overdue = now - last - self._interval
            if overdue > self._interval and self._loop.is_running():
                self._sample(last)
            if overdue > self._report_after and reported != last and self._alive - self._before[2] > self._report_after:
                reported = last
                logger.error(
                    "event loop blocked for more than %g s: %s", self._report_after, _common_frames(self._samples)[0]
                )
            with suppress(Empty):
                lines.log(self._periods.get_nowait())

    def _sample(self, last: float) -> None:
        stack, samples = _stack(sys._current_frames().get(self._ident)), self._samples
        if self._last == last and len(samples) < _MAX_SAMPLES:  # otherwise the period has ended meanwhile
            samples.append(stack)


class _QueuedTime:
    """The time for which a thread of this process was runnable without a processor; 0 if it is unknown."""

    def __init__(self, native_id: int) -> None:
        self._file: BufferedReader | None = None
        with suppress(OSError):
            self._file = Path(f"/proc/self/task/{native_id}/schedstat").open("rb")  # noqa: SIM115 (it stays open)

    def seconds(self) -> float:
        """Return the seconds since the thread's start (proc(5), `/proc/PID/schedstat`)."""
        if self._file is None or self._file.closed:
            return 0.0
        return int(os.pread(self._file.fileno(), 64, 0).split()[1]) / 1e9

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()


class _Lines:
    """Logs blocked periods, at a limited rate."""

    def __init__(self) -> None:
        self._left = float(_BURST_LINES)
        self._last = time.monotonic()
        self._omitted = 0

    def log(self, period: BlockedPeriod) -> None:
        """Log a blocked period, or count it for the next line."""
        now = time.monotonic()
        self._left = min(self._left + (now - self._last) / _REFILL_SECONDS, _BURST_LINES)
        self._last = now
        if self._left < 1:
            self._omitted += 1
            return
        self._left -= 1
        more = f" ({self._omitted} earlier ones not logged)" if self._omitted else ""
        self._omitted = 0
        logger.warning("event loop was blocked for %s%s", period, more)


def blocked_seconds(late: float, ran: float, queued: float, alive: float) -> float:
    """Return how long the loop was blocked by its own work, given the lateness of a heartbeat.

    Args:
        late: seconds.
        ran: the part of that time in which the loop's thread had a processor.
        queued: the part in which it waited for one.
        alive: the part in which the monitor's thread ran normally, so the process was not stopped.
    """
    return min(late - queued, max(ran, alive - queued))


def _common_frames(samples: list[Stack]) -> tuple[str, str]:
    """Return the frames that at least half of the samples share, the innermost first, and their number."""
    common: list[str] = []
    those = samples
    while ahead := Counter(stack[len(common)][0] for stack in those if len(stack) > len(common)):
        [(frame, count)] = ahead.most_common(1)
        if 2 * count < len(samples):
            break
        those = [stack for stack in those if len(stack) > len(common) and stack[len(common)][0] == frame]
        common.append(frame)
    lines = those[0] if those else []
    named = [
        f"{file}:{line} {function}" for file, line, function in map(_parts, lines[: len(common)][-_REPORTED_FRAMES:])
    ]
    return " < ".join(reversed(named)), f"{len(those)} of {len(samples)}"


def _parts(frame: tuple[str, int]) -> tuple[str, int, str]:
    file, _, function = frame[0].rpartition(" ")
    return file, frame[1], function


def _stack(frame: FrameType | None) -> Stack:
    stack: Stack = []
    while frame and len(stack) < _MAX_FRAMES and frame.f_code.co_qualname != _OUTERMOST:
        file = "/".join(frame.f_code.co_filename.rsplit(os.sep, _PATH_PARTS)[-_PATH_PARTS:])
        stack.append((f"{file} {frame.f_code.co_qualname}", frame.f_lineno))
        frame = frame.f_back
    return stack[::-1]
