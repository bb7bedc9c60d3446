"""The processes behind one port, as one server: its readiness, its counts, what it runs, and its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from time import monotonic
from typing import Any, Final

from ..concurrency.offloading import in_thread
from ..concurrency.tasks import LoopTask
from ..core.owner import Owner
from ..core.types import Json
from ..generation.activity import Activity
from ..generation.recent_activity import RecentActivity
from ..intervals import Intervals
from ..jobs.live_responses import LiveResponses
from ..lifecycle.siblings import Siblings
from ..logs import get_logger, name_process
from ..telemetry.metrics_endpoint import MetricsEndpoint, own_metrics
from .readiness import Readiness, ReadinessReport, State

logger = get_logger(__name__)

_TAKEOVER_SECONDS: Final = 1.0
"""Interval at which a process tries to serve the metrics, if no other one does."""

_GATHER_SECONDS: Final = 3.0
"""Time for which a scrape waits for the other processes."""

_WORST_FIRST: Final[Sequence[State]] = ("unavailable", "unknown", "ok")


class ProcessSet:
    """This process and those beside it.

    Args:
        readiness: says whether this process is ready.
        activity: counts what it does.
        live: the responses that run on it.
        intervals: how long a report holds.
    """

    def __init__(self, readiness: Readiness, activity: Activity, live: LiveResponses, intervals: Intervals) -> None:
        self._readiness = readiness
        self._activity = activity
        self._live = live
        self._intervals = intervals
        self._recent = RecentActivity(activity)
        self._siblings = Siblings()
        self._metrics = MetricsEndpoint(lambda: self._siblings.number, self._metrics_of_others)
        self._configured = 1
        self._scraped = False
        self._task = LoopTask(self._take_part)
        self._looking = LoopTask(self._recent.keep_looking)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asking: asyncio.Task[ReadinessReport] | None = None
        self._until = 0.0

    def start(self, configured: int, *, scraped: bool) -> None:
        """Take part.

        Args:
            configured: the number of processes.
            scraped: whether Prometheus shall scrape them.
        """
        self._configured, self._scraped = configured, scraped
        self._loop = asyncio.get_running_loop()
        self._task.start()
        self._looking.start()

    async def stop(self) -> None:
        """Leave the others."""
        await self._task.stop()
        await self._looking.stop()
        self._metrics.close()
        await self._siblings.stop()
        name_process(None)

    async def ready(self) -> ReadinessReport:
        """Return whether requests should be sent to this port."""
        if self._siblings.number is None:
            return await self._readiness.report()
        if self._asking is None or (self._asking.done() and monotonic() >= self._until):
            self._asking = asyncio.create_task(self._ask_all())
        return await asyncio.shield(self._asking)

    async def counts(self, owner: Owner) -> Json:
        """Return the owner's counts, with a name that changes when a process ends, whose counts are missing then."""
        others = await self._siblings.ask("counts", owner.principal, owner.tenant)
        return reduce(added, others.values(), self._counts(owner))

    async def history(self, owner: Owner) -> Json:
        """Return what this server did for the owner in the last hour, with the name of `counts`."""
        others = await self._siblings.ask("history", owner.principal, owner.tenant)
        return reduce(history_of_both, others.values(), self._history(owner))

    async def running(self, owner: Owner, response_id: str | None = None) -> dict[str, dict[str, Json]]:
        """Return the running responses of the owner, by process and id; `response_id` is shown in detail."""
        others = await self._siblings.ask("running", owner.principal, owner.tenant, response_id)
        return self._running(owner, response_id) | {
            name: states for each in others.values() for name, states in each.items()
        }

    def _counts(self, owner: Owner) -> Json:
        return {"server": self._live.server, **self._activity.now(owner)}

    def _history(self, owner: Owner) -> Json:
        return {"server": self._live.server, "since": self._recent.since, "buckets": self._recent.of(owner)}

    def _running(self, owner: Owner, response_id: str | None) -> dict[str, dict[str, Json]]:
        return {self._live.server: self._live.here(owner, response_id)}

    async def _take_part(self) -> None:
        await self._siblings.start(
            self._configured,
            {
                "ready": self._answer_ready,
                "counts": self._answer_counts,
                "history": self._answer_history,
                "running": self._answer_running,
                "metrics": self._answer_metrics,
                "serves_metrics": self._answer_serves_metrics,
            },
        )
        name_process(self._siblings.number)
        refused = False
        while self._scraped and not self._metrics.serves:
            refused = await self._serve_metrics(refused=refused)
            await asyncio.sleep(_TAKEOVER_SECONDS)

    async def _serve_metrics(self, *, refused: bool) -> bool:
        """Serve the metrics, if no other process does; return whether another program has the port."""
        try:
            self._metrics.open()
        except (ImportError, OSError, ValueError) as error:
            if not any((await self._siblings.ask("serves_metrics")).values()):
                if not refused:
                    logger.error("cannot serve metrics, will retry: %s", error)
                return True
        return False

    async def _ask_all(self) -> ReadinessReport:
        others, own = await asyncio.gather(self._siblings.ask("ready"), self._readiness.report())
        reports = [own, *(ReadinessReport(**each) for _, each in sorted(others.items()))]
        self._until = monotonic() + self._intervals.ready_cache_seconds
        return of_all(reports, self._configured, complete=self._siblings.complete)

    def _metrics_of_others(self) -> Mapping[int, str]:
        if self._loop is None or not self._loop.is_running():
            return {}
        asking = asyncio.run_coroutine_threadsafe(self._siblings.ask("metrics"), self._loop)
        return asking.result(_GATHER_SECONDS)

    async def _answer_ready(self) -> Json:
        return asdict(await self._readiness.report())

    async def _answer_counts(self, principal: str, tenant: str) -> Json:
        return self._counts(Owner(principal, tenant=tenant))

    async def _answer_history(self, principal: str, tenant: str) -> Json:
        return self._history(Owner(principal, tenant=tenant))

    async def _answer_running(self, principal: str, tenant: str, response_id: str | None) -> dict[str, dict[str, Json]]:
        return self._running(Owner(principal, tenant=tenant), response_id)

    async def _answer_metrics(self) -> str:
        return await in_thread(own_metrics)

    async def _answer_serves_metrics(self) -> bool:
        return self._metrics.serves


def of_all(reports: Sequence[ReadinessReport], configured: int, *, complete: bool) -> ReadinessReport:
    """Return the report of several processes.

    A process that ends alone does not count: it is replaced, and the others take its connections.

    Args:
        reports: those of the processes that answer.
        configured: the number of processes.
        complete: whether all processes have run at the same time since the start.
    """
    stay = [each for each in reports if each.status != "stopping"]
    if not stay:
        return reports[0]
    parts = {name: worst(each.parts.get(name, "unknown") for each in stay) for name in stay[0].parts}
    notes = {name: note for each in stay for name, note in sorted(each.notes.items())}
    if len(stay) < configured:
        notes["processes"] = f"{len(stay)} of {configured}"
    ready = complete and all(each.ready for each in stay)
    return ReadinessReport("ready" if ready else "not_ready", parts, notes)


def worst(states: Iterable[State]) -> State:
    """Return the worst of some states."""
    return min(states, key=_WORST_FIRST.index)


def added(first: Json, second: Json) -> Json:
    """Return the sum of two counts. Names are joined in their order, whichever process adds."""
    return {name: _sum(name, first[name], second[name]) for name in first}


def history_of_both(one: Json, other: Json) -> Json:
    """Return the histories of two processes as one. Their half minutes are the same."""
    buckets = {each["at"]: each for each in one["buckets"]}
    for each in other["buckets"]:
        at = each["at"]
        known = buckets.get(at)
        longest = {"at": at, "seconds": max(each["seconds"], known["seconds"] if known else 0)}
        buckets[at] = {**added(known, each), **longest} if known else each
    return {
        "server": _sum("server", one["server"], other["server"]),
        # What a process did that ended before is missing.
        "since": max(one["since"], other["since"]),
        "buckets": [buckets[at] for at in sorted(buckets)],
    }


def _sum(name: str, one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return added(one, other)
    if isinstance(one, str):
        return "+".join(sorted({*one.split("+"), *other.split("+")}))
    if name == "last":
        return max((each for each in (one, other) if each is not None), default=None)
    return one + other
