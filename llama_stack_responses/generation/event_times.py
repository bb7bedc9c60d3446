"""The times of a response's events, in few bytes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from time import perf_counter
from typing import Final

_MAX_TICKS: Final = 2000
"""Maximum number of times that are kept; beyond that, every second one is dropped, and fewer are noted from then on."""

_TICK_SECONDS: Final = 0.04
_TICK: Final = "i"
"""The type of a number in the array of them."""
_MAX_TICK: Final = 2**31 - 1


class EventTimes:
    """Notes when batches of events were ready: pairs of a number of events and the milliseconds since the last pair.

    Args:
        seconds: seconds from the response's creation until now.
        before: the pairs that an earlier worker noted, as `copied` returned them.
    """

    __slots__ = ("_began", "_counted", "_interval", "_last", "_skipped", "_skipped_at", "_ticks")

    def __init__(self, seconds: float = 0.0, before: Sequence[int] = ()) -> None:
        self._began = perf_counter() - seconds
        self._interval = _TICK_SECONDS
        self._ticks = _bounded(before)
        self._counted = sum(before[::2])
        self._last = sum(before[1::2]) / 1000
        self._skipped, self._skipped_at = 0, 0.0

    def note(self, count: int) -> None:
        """Note that the first `count` events of the response are ready."""
        now = perf_counter() - self._began
        if count <= self._counted:
            return
        if self._ticks and now - self._last < self._interval:
            self._skipped, self._skipped_at = count, now
            return
        if now - self._skipped_at >= self._interval:
            self._note_skipped()
        self._add(count, now)

    def _note_skipped(self) -> None:
        """Note the events that came too soon after others, before a pause: they did not come after it."""
        if self._skipped > self._counted:
            self._add(self._skipped, self._skipped_at)

    def _add(self, count: int, now: float) -> None:
        self._ticks.append(count - self._counted)
        self._ticks.append(min(round(now * 1000) - round(self._last * 1000), _MAX_TICK))
        self._counted, self._last = count, now
        if len(self._ticks) > 2 * _MAX_TICKS:
            self._thin()

    def keep(self, count: int, at: int) -> None:
        """Note that an earlier worker left `count` events; those that it had not noted count as ready after `at` ms."""
        while self._counted > count:
            self._counted -= 1
            self._ticks[-2] -= 1
            if not self._ticks[-2]:
                self._last -= self._ticks[-1] / 1000
                del self._ticks[-2:]
        if count > self._counted:
            at = max(at, round(self._last * 1000))
            self._ticks += _bounded((count - self._counted, at - round(self._last * 1000)))
            self._counted, self._last = count, at / 1000

    def copied(self) -> list[int]:
        """Return a copy of the pairs so far, one after another."""
        self._note_skipped()
        return list(self._ticks)

    def ticks(self) -> list[int]:
        """Return the pairs, one after another. Events after them came with the end of the response."""
        self._note_skipped()
        ended = round((perf_counter() - self._began - self._last) * 1000)
        return [*self._ticks, 2**31, ended] if self._ticks else []

    def _thin(self) -> None:
        ticks, self._interval = self._ticks, 2 * self._interval
        ends = range(0, len(ticks) - 3, 4)
        self._ticks = _bounded(
            each for at in ends for each in (ticks[at] + ticks[at + 2], ticks[at + 1] + ticks[at + 3])
        )
        self._ticks += ticks[len(ends) * 4 :]


def times_of(recorded: Sequence[int]) -> Callable[[int], int]:
    """Return the time in milliseconds of each event; calls come in order of the events' numbers.

    Args:
        recorded: the pairs of `EventTimes.ticks`: a number of events, and the milliseconds since the previous pair.
    """
    pairs = iter(zip(islice(recorded, 0, None, 2), islice(recorded, 1, None, 2), strict=False))
    until, now = 0, 0

    def time_of(number: int) -> int:
        nonlocal until, now
        while number >= until:
            count, later = next(pairs, (number + 1 - until, 0))
            until, now = until + count, now + later
        return now

    return time_of


def _bounded(ticks: Iterable[int]) -> array[int]:
    """Return numbers as an array; more than 24 days count as that."""
    return array(_TICK, [min(each, _MAX_TICK) for each in ticks])
