"""Readiness: whether this server, its store and a model server answer now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal

from ..concurrency.tasks import LimitedCheck
from ..core.errors import ApiError
from ..intervals import Intervals
from ..logs import get_logger

logger = get_logger(__name__)

type State = Literal["ok", "unavailable", "unknown"]
type ReadinessCheck = Callable[[], Awaitable[bool | None]]
"""Returns whether a part answers, or None if that cannot be found out; an `ApiError` means that it does not."""


@dataclass(frozen=True, slots=True)
class ReadinessReport:
    """The result of a check.

    Attributes:
        status: `ready`; `not_ready`, a part does not answer or this server has a fault; `stopping`, it shuts down.
        parts: the state of each part, by its name.
        notes: what an operator has to mend, by its name.
    """

    status: Literal["ready", "not_ready", "stopping"]
    parts: Mapping[str, State]
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether requests should be sent to this server."""
        return self.status == "ready"


class Readiness:
    """Checks the parts that requests need.

    Anyone may ask, so at most one check runs at a time, and its report holds for `ready_cache_seconds`.

    Args:
        checks: checks the parts, by name. Each may take `ready_seconds`.
        stopping: whether this server shuts down.
        intervals: the time limits.
        notes: returns the notes of a report.
        faults: returns the notes with which this server is not ready.
    """

    def __init__(
        self,
        checks: Mapping[str, ReadinessCheck],
        stopping: Callable[[], bool],
        intervals: Intervals,
        notes: Callable[[], Mapping[str, str]] = dict,
        faults: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._checks = {name: LimitedCheck(check, intervals.ready_seconds) for name, check in checks.items()}
        self._stopping = stopping
        self._intervals = intervals
        self._notes = notes
        self._faults = faults
        self._checking: asyncio.Task[ReadinessReport] | None = None
        self._until = 0.0
        self._last: Mapping[str, State] = {}

    async def report(self) -> ReadinessReport:
        """Return the report of the check that is running, or of the last one, or of a new one."""
        if self._stopping():
            return ReadinessReport("stopping", {})
        if self._checking is None or (self._checking.done() and monotonic() >= self._until):
            self._checking = asyncio.create_task(self._check())
        # The check continues if the client whose request started it disconnects.
        return await asyncio.shield(self._checking)

    async def _check(self) -> ReadinessReport:
        states = await asyncio.gather(*map(self._state, self._checks.values()))
        parts = {name: state for name, (state, _) in zip(self._checks, states, strict=True)}
        for name, (state, why) in zip(self._checks, states, strict=True):
            # Only changes are logged: anyone may cause a check each second.
            if state != self._last.get(name, "unknown" if state == "unknown" else "ok"):
                if state == "ok":
                    logger.info("readiness: %s is ok", name)
                else:
                    logger.warning("readiness: %s is %s%s", name, state, f": {why}" if why else "")
        self._last = parts
        self._until = monotonic() + self._intervals.ready_cache_seconds
        faults = self._faults()
        unready = faults or "unavailable" in parts.values()
        return ReadinessReport("not_ready" if unready else "ready", parts, {**faults, **self._notes()})

    async def _state(self, check: LimitedCheck[bool | None]) -> tuple[State, str]:
        """Return the state of a part, and the reason if it is not ok."""
        try:
            answers = await check.run()
        except TimeoutError:
            return "unavailable", f"no answer within {self._intervals.ready_seconds:g} seconds"
        except ApiError as error:
            return "unavailable", str(error)
        except Exception as error:
            logger.exception("a check of readiness failed")
            return "unavailable", type(error).__name__
        return ("unknown" if answers is None else "ok" if answers else "unavailable"), ""
