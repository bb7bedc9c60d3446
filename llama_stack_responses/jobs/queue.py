"""The job queue as records: which jobs wait, which class is claimed first, who holds which job, and how far it is.

    j/<response>            the job's state (`JobState`); small, since each claim and release writes it
    k/<response>            the request and the job's progress (`Checkpoint`)
    q/<order>/<response>    the job waits; the lowest order is next (`fair_order.py`), by class (`work_class.py`); the
                            value is its owner's name, and its model (`InQueue`)
    d/<owner>/<response>    a background response of this authenticated owner waits or runs
    p/<worker>              the worker's lease: it expires unless a heartbeat renews it (`worker_leases.py`)
    h/<worker>/<response>   the worker holds the job

Every step of a job is a commit on the condition that the version of its `j/` row has not changed: the fence. A worker
that takes a job over, after the death of the previous one or to cancel it, writes that row. From then on, all commits
of the previous worker fail (a fencing token, as in Kleppmann, "How to do distributed locking", 2016).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Set
from contextlib import ExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from math import inf
from typing import Final, NamedTuple

from ..concurrency.share import current_share
from ..core.errors import ApiError
from ..core.ids import tag_of
from ..core.owner import Owner
from ..core.types import Json
from ..intervals import DEFAULT
from ..logs import get_logger, known
from ..store import codec
from ..store.decoder import Decoder
from ..store.records import (
    Condition,
    Conflict,
    Delete,
    Notify,
    Op,
    Put,
    Record,
    Records,
    VersionIs,
    after_prefix,
    apply_noted,
    committed,
    find_replicated,
    pages_in,
    pages_of,
    range_in,
)
from ..telemetry.trace_context import trace_headers
from . import fair_order
from .dead_workers import DeadWorkers, held_in, is_stalled, lease_key
from .hints import HintWriter, Unread
from .job import QUEUED_EVENTS, Checkpoint, InQueue, Job, JobState, Verdict, name_of, owner_prefix
from .row_quota import RowQuota
from .served_partitions import HELD, MOMENT_SECONDS, ServedPartitions
from .work_class import BACKGROUND, Work, WorkClass
from .worker_leases import WorkerLeases

logger = get_logger(__name__)

MAX_TRIES: Final = 3
"""Maximum tries of a job between two checkpoints: a job that keeps crashing its worker is not tried again.

Only tries that end with the death of the worker or with a defect count. A try that ends with an outage of the store,
while its worker is alive, is not counted.
"""


QUEUE: Final = "q"
"""The name of the notification that a job is waiting."""

_MAX_CLAIM_WINDOW: Final = 8
"""Maximum number of jobs at the head of the queue from which a worker chooses one to claim."""

_PAGE_ROWS: Final = 500

_ALL_TIMES: Final = "0"
"""The first digit of all start tags up to the year 2527."""

_DUE_SECONDS: Final = 3600.0
"""Seconds before its deadline from which a job with a completion window goes before all others: half of the shortest
window."""

_LOOK_SECONDS: Final = 1.0
"""Interval in which a server looks for jobs whose deadline is near."""

_PRIORITY_TURNS: Final = 4
"""Of so many claims of a server, one passes over the jobs of the class `PRIORITY`, so that nobody waits only for
others' priority."""

_OTHERS_TURN: Final = 16
"""Of so many claims of a server, one begins at a lower class, so that no class waits for ever."""

_RETRY_AFTER_SECONDS: Final = 10

_COUNTED_SECONDS: Final = 7 * 86_400.0
"""Seconds for which a job counts for its owner, if the row that counts it is in another partition."""


class Backlog(NamedTuple):
    """The jobs of a class that wait.

    Attributes:
        length: how many there are.
        age: for how many seconds the longest has waited; 0 without any.
    """

    length: int
    age: float


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Waiting jobs that a worker does not claim.

    Attributes:
        owners: the names of owners.
        models: the names of models.
    """

    owners: Set[str] = frozenset()
    models: Set[str] = frozenset()

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self.owners or self.models)

    def has(self, value: bytes) -> bool:
        """Return whether the job with this value of its row of the queue is one of them."""
        if not self.any:
            return False
        waiting = InQueue.decode(value)
        return waiting.owner in self.owners or waiting.model in self.models


NOTHING: Final = PassedOver()


class _Told(NamedTuple):
    """A time of the store's clock, in seconds since the epoch, and that of the event loop when it was read."""

    now: float
    at: float


class JobQueue:
    """A queue of jobs for all processes that share a store; each job is held by one worker at a time.

    Args:
        records: the store.
        limit: how many jobs may wait in each partition; concurrent processes may exceed it a little, and owners who
            have less than their share of it still queue jobs.
        per_user: how many background responses of one authenticated owner may wait or run; as exact as `limit`.
        lease_seconds: how long a worker counts as alive after a heartbeat, on the store's clock.
        page_rows: maximum number of rows of the queue that one round trip reads.
        decoder: decodes checkpoints.
        clock: returns the time of the store's clock, in seconds since the epoch, without a round trip.
        look_seconds: as of `ServedPartitions`.
    """

    def __init__(
        self,
        records: Records,
        limit: int,
        per_user: int | None = None,
        lease_seconds: float = DEFAULT.lease_seconds,
        page_rows: int = _PAGE_ROWS,
        decoder: Decoder | None = None,
        clock: Callable[[], float] = time.time,
        look_seconds: float | None = None,
    ) -> None:
        self._records = records
        self._clock = clock
        self._decoder = decoder or Decoder()
        self._page_rows = page_rows
        self._limit = limit
        self._per_user = limit if per_user is None else per_user
        self._quota = RowQuota(records)
        self._fair_order = fair_order.FairOrder()
        self._claims, self._lower = 0, cycle((WorkClass.WINDOW, WorkClass.FLEX, WorkClass.BATCH))
        self._windows: dict[int, tuple[float, float]] = {}
        self.served = ServedPartitions(records, look_seconds)
        """The partitions that this process serves."""
        self.dead_workers: Final = DeadWorkers(records, self.served, lease_seconds)
        """Finds what dead workers hold."""
        self._told: _Told | None = None
        self._hints = HintWriter(records)
        self.leases: Final = WorkerLeases(records, lease_seconds, clock)
        """The leases of the workers of this process."""

    @asynccontextmanager
    async def enqueued(
        self, response_id: str, owner: Owner, body: Json, sealed: str | None = None, work: Work = BACKGROUND
    ) -> AsyncIterator[list[Op]]:
        """Yield the ops that store a waiting job; the block commits them together with the job's response.

        The jobs of batches do not count: a batch queues a few of its lines at a time.

        Raises:
            ApiError: 429, the owner has too many jobs, or too many of its class wait and the owner has a share of them.
        """
        counts = work.kind is not WorkClass.BATCH
        number = self.served.number_of(tag_of(response_id))
        async with self._admitted(owner, work.kind, number) if counts else nullcontext():
            of, now = name_of(owner), await self._records.now()
            rows = fair_order.rows_of(of, work, number)
            with self._hints.unread() as unread:
                known = unread.over(await self._records.get_many(rows) if rows else {})
            order, hints = self._fair_order.assign(of, known, now, current_share().weight, work, number)
            state = JobState(owner, order, model=body.get("model") or "")
            ops: list[Op] = [
                Put(f"j/{response_id}", state.encode()),
                Put(f"k/{response_id}", await _first_checkpoint(body, sealed, queued_at=now).encode()),
                _in_queue(response_id, state),
            ]
            if counts and not owner.is_anonymous:
                # In another partition, it may be written after the job's end has deleted it.
                ends = now + _COUNTED_SECONDS if self.served.count > 1 else None
                ops.append(Put(f"{owner_prefix(owner)}{response_id}", b"", ends))
            yield ops
            self.served.found(number)
            self._hints.schedule(*hints)

    @asynccontextmanager
    async def _admitted(self, owner: Owner, kind: WorkClass, number: int) -> AsyncIterator[None]:
        """Admit one more waiting job, which the block stores; errors as of `enqueued`."""
        with ExitStack() as admitted:
            theirs = None
            if not owner.is_anonymous:
                theirs = await self._quota.take(owner_prefix(owner), self._per_user)
                if theirs is None:
                    raise _full(f"You have {self._per_user} background responses queued or running.")
                admitted.callback(theirs.finish)
            if waiting := await self._quota.take(_waiting(kind), self._limit, number):
                admitted.callback(waiting.finish)
            elif theirs is None or theirs.count > await self._fair_share(owner, kind, number):
                raise _full("Too many background responses are queued.")
            yield

    async def _fair_share(self, owner: Owner, kind: WorkClass, number: int) -> int:
        """Return how many jobs an owner may have although those of others fill the queue of a class.

        All owners who have no more than their share have as many jobs together as the limit says, or one each if there
        are more owners than that.
        """
        owners = {name_of(owner)}
        async for rows in pages_in(self._records, number, _waiting(kind), self._page_rows):
            owners.update(InQueue.decode(row.value).owner for _, row in rows)
        return max(1, self._limit // len(owners))

    async def create_claimed(
        self, response_id: str, owner: Owner, body: Json, worker: str, sealed: str | None = None
    ) -> tuple[Job, list[Op]]:
        """Return a job that this worker holds from the start, and the ops that store it.

        The caller commits the ops together with the job's response.
        """
        now = await self._records.now()
        state = JobState(owner, fair_order.encoded(now), worker, tries=1, starts=1, began=now)
        ops: list[Op] = [
            Put(f"j/{response_id}", state.encode()),
            Put(f"k/{response_id}", await _first_checkpoint(body, sealed, numbered=0).encode()),
            Put(f"h/{worker}/{response_id}", b""),
            *await self.leases.ops(worker, response_id),
        ]
        return Job(response_id, state, 1), ops

    async def claim(self, worker: str, passed_over: PassedOver = NOTHING, *, can_wait: bool = True) -> Job | None:
        """Claim the next waiting job; return None if there is none, or none that can be decoded.

        Args:
            worker: the worker that claims it.
            passed_over: the jobs that are skipped.
            can_wait: whether jobs that can wait are claimed too.
        """
        failure: ApiError | None = None
        async for number in self.served.in_order():
            try:
                job = await self._claim_in(number, worker, passed_over, can_wait=can_wait)
            except ApiError as error:
                failure = error
                self.served.silent(number)
                continue
            if job:
                self._claims += 1
                self.served.taken(number)
                return job
            if can_wait and not passed_over.any:
                self.served.emptied(number)
        if failure:
            raise failure
        return None

    async def _claim_in(self, number: int, worker: str, passed_over: PassedOver, *, can_wait: bool) -> Job | None:
        for start, end in await self._ranges(number, can_wait=can_wait):
            if job := await self._claim_within(number, (start, end), worker, passed_over):
                return job
        return None

    async def _ranges(self, number: int, *, can_wait: bool) -> list[tuple[str, str]]:
        """Return the ranges of a partition's queue in which a job is looked for, in order."""
        end = after_prefix("q/")
        if await self._is_window_due(number):
            return [(f"q/{WorkClass.WINDOW}", f"q/{WorkClass.FLEX}"), ("q/", end)]
        first = f"q/{_ALL_TIMES}" if self._claims % _PRIORITY_TURNS == _PRIORITY_TURNS - 1 else "q/"
        if not can_wait:
            end = f"q/{WorkClass.WINDOW}"
        elif self._claims % _OTHERS_TURN == _OTHERS_TURN - 1:
            first = f"q/{next(self._lower)}"
        return list(dict.fromkeys([(first, end), ("q/", end)]))  # usually one

    async def _is_window_due(self, number: int) -> bool:
        """Return whether the job of a partition with the first deadline should go before all others."""
        now = self._clock()
        looked_at, due_at = self._windows.get(number, (-inf, inf))
        if now >= due_at or abs(now - looked_at) >= _LOOK_SECONDS:
            first = await range_in(self._records, number, f"q/{WorkClass.WINDOW}", f"q/{WorkClass.FLEX}", limit=1)
            due_at = fair_order.start_tag_of(first[0][0].split("/")[1]) - _DUE_SECONDS if first else inf
            self._windows[number] = now, due_at
        return now >= due_at

    async def _claim_within(
        self, number: int, within: tuple[str, str], worker: str, passed_over: PassedOver
    ) -> Job | None:
        reach = 1
        unreadable: set[str] = set()
        while rows := await self._next(number, within, reach, unreadable, passed_over):
            row = random.choice(rows)  # noqa: S311 (no secret)
            try:
                job = await self._take(row, worker)
            except codec.UnreadableError as error:
                logger.error("could not read a queued job, skipping it: %s: %s", row, error)
                unreadable.add(row)
                continue
            if job is not None:
                return job
            # Another worker has claimed it. Choose among more jobs, so that the workers do not collide again.
            reach = min(2 * reach, _MAX_CLAIM_WINDOW)
        return None

    async def _next(
        self, number: int, within: tuple[str, str], reach: int, unreadable: Set[str], passed_over: PassedOver
    ) -> list[str]:
        """Return the keys of the next waiting jobs of a range of a partition, at most `reach` of one class."""
        (start, end), keys = within, list[str]()
        # With jobs to skip, read whole pages: many of their rows may come before another one.
        limit = self._page_rows if passed_over.any else reach + len(unreadable)
        while rows := await range_in(self._records, number, start, end, limit=limit):
            keys += [key for key, row in rows if key not in unreadable and not passed_over.has(row.value)]
            if len(keys) >= reach or len(rows) < limit:
                break
            start = rows[-1][0] + "\0"
        return [key for key in keys[:reach] if _class_of(key) is _class_of(keys[0])]

    async def _take(self, row: str, worker: str) -> Job | None:
        with self._hints.unread() as unread:
            return await self._taken(row, worker, unread)

    async def _taken(self, row: str, worker: str, unread: Unread) -> Job | None:
        response_id = row.rpartition("/")[2]
        number = self.served.number_of(tag_of(response_id))
        turn = fair_order.virtual_time_of(_class_of(row), number)
        records = await self._records.get_many([f"j/{response_id}", f"k/{response_id}", turn])
        stored = Job.find(response_id, records)
        if stored is None or stored.state.worker is not None:
            await self._drop(row, response_id, stored)
            return None
        state = await self._without_living(stored.state)
        began = self._clock() if state.began is None else state.began
        state = replace(state, worker=worker, tries=state.tries + 1, starts=state.starts + 1, began=began)
        checkpoint = await self._checkpoint_of(response_id, records)
        if checkpoint is not None and state.tries - checkpoint.tries > MAX_TRIES:
            state = replace(state, verdict=state.verdict or "failed")
        ops: list[Op] = [
            Delete(row),
            Put(f"j/{response_id}", state.encode()),
            Put(f"h/{worker}/{response_id}", b""),
            *await self.leases.ops(worker, response_id),
        ]
        job = await self._change(stored, state, ops, [])
        if job is not None:
            self._hints.schedule(*fair_order.advanced(state.order, unread.over(records), number))
        return job

    async def _without_living(self, state: JobState) -> JobState:
        """Return the state without the tries of workers whose lease expired and that are alive again."""
        if not state.lost:
            return state
        try:
            living = await self._records.get_many([lease_key(worker) for worker in dict.fromkeys(state.lost)])
        except ApiError:
            if self.served.count == 1:
                raise
            return state  # their leases are in another partition than the job
        lost = [worker for worker in state.lost if lease_key(worker) not in living]
        return replace(state, lost=lost, tries=state.tries - (len(state.lost) - len(lost)))

    async def backlog(self) -> dict[WorkClass, Backlog]:
        """Return what waits in each class."""
        counts, oldest = Counter[WorkClass](), dict[WorkClass, float]()
        async for rows in pages_of(self._records, "q/", self._page_rows):
            for key, _ in rows:
                kind, queued_at = _class_of(key), fair_order.queued_at(key.split("/")[1])
                counts[kind] += 1
                oldest[kind] = min(oldest.get(kind, inf), queued_at)
        now = await self._records.now()
        return {kind: Backlog(counts[kind], max(now - oldest.get(kind, now), 0.0)) for kind in WorkClass}

    async def hints_written(self) -> None:
        """Wait until the hints about jobs queued and claimed here are written."""
        await self._hints.written()

    async def find(self, response_id: str) -> Job | None:
        """Return the job as it is now, whichever worker holds it; None if it has ended or never existed."""
        return Job.find(response_id, await self._records.get_many([f"j/{response_id}"]))

    async def find_replicated(self, response_id: str) -> Job | None:
        """Return what `find` does, but None only if the job does not come back with another server of the store.

        Raises:
            ApiError: as from `read_replicated`.
        """
        return await find_replicated(self._records, tag_of(response_id), partial(self.find, response_id))

    async def find_many(self, response_ids: Sequence[str]) -> dict[str, Job]:
        """Return the jobs of these responses that have not ended, by response id."""
        states = await self._records.get_many([f"j/{each}" for each in response_ids]) if response_ids else {}
        jobs = {each: Job.find(each, states) for each in response_ids}
        return {each: job for each, job in jobs.items() if job}

    async def checkpoint(self, response_id: str) -> Checkpoint | None:
        """Return the job's checkpoint; None if the job has ended."""
        return await self._checkpoint_of(response_id, await self._records.get_many([f"k/{response_id}"]))

    async def _checkpoint_of(self, response_id: str, records: Mapping[str, Record]) -> Checkpoint | None:
        record = records.get(f"k/{response_id}")
        return await Checkpoint.decode(record, self._decoder) if record else None

    async def unchanged(self, jobs: Sequence[Job]) -> set[str]:
        """Return the response ids of those jobs that have not changed since they were read.

        The claim of a job may be lost in a failover. The claim of another worker then gives it the same version.
        """
        states = await self._records.get_many([f"j/{each.response_id}" for each in jobs])
        found = {each.response_id: Job.find(each.response_id, states) for each in jobs}
        now = {each: (job.version, job.state.worker) for each, job in found.items() if job}
        return {each.response_id for each in jobs if now.get(each.response_id) == (each.version, each.state.worker)}

    async def claim_to_end(self, response_id: str, worker: str, verdict: Verdict) -> Job | None:
        """Claim the job, even from another worker, to end it with `verdict`.

        Return None if the job has ended, or if a worker already holds it with that verdict.
        """
        while stored := await self.find(response_id):
            if stored.state.worker and stored.state.verdict == verdict:
                return None
            state = replace(stored.state, worker=worker, verdict=verdict)
            ops: list[Op] = [
                Delete(f"q/{stored.state.order}/{response_id}"),
                Delete(f"h/{stored.state.worker}/{response_id}"),
                Put(f"h/{worker}/{response_id}", b""),
                Put(f"j/{response_id}", state.encode()),
                *await self.leases.ops(worker, response_id),
                Notify(takeover_channel(stored.state.worker)),
            ]
            if job := await self._change(stored, state, ops, []):
                return job
        return None

    async def release(self, job: Job) -> None:
        """Requeue the job and do not count this try; do nothing if another worker has changed the job."""
        await self._requeue(job, replace(job.state, worker=None, tries=job.state.tries - 1), [])

    async def notify_workers(self) -> None:
        """Notify the other processes of waiting jobs, if there are any."""
        if self.served.count > 1:
            if announced := await self.served.announced():
                await self._records.commit([*announced, Notify(QUEUE)])
        elif await self._records.range("q/", after_prefix("q/"), limit=1):
            await self._records.commit([Notify(QUEUE)])

    async def heartbeat(self, worker: str, holding: Iterable[str] = ()) -> float:
        """Renew the worker's leases, and return the time of the store's clock, in seconds since the epoch.

        Args:
            worker: the worker.
            holding: the ids of the responses that it runs.
        """
        now = await self._now()
        until = await self.leases.renew(worker, now, holding, first_needed=self.served.count == 1)
        self.dead_workers.renewed(worker, until)
        if not await self.served.share(worker):
            self.dead_workers.note_silent(0)
        return now

    async def _now(self) -> float:
        """Return the time of the store's clock; of several partitions, without waiting for one that is away.

        Then it is that of the last call, and what has passed since.
        """
        known, loop = self._told, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(MOMENT_SECONDS if known and self.served.count > 1 else None):
                now = await self._records.now()
        except TimeoutError:
            assert known
            return known.now + loop.time() - known.at
        self._told = _Told(now, loop.time())
        return now

    async def deregister(self, worker: str) -> None:
        """Delete the worker's lease: the jobs that it holds are stalled from now on."""
        await self.leases.end(worker)

    async def requeue_stalled(self, by: str) -> int:
        """Requeue the jobs of dead workers, and return how many were requeued.

        Args:
            by: the worker that requeues them; it needs a lease itself.
        """
        requeued = 0
        async for worker, response_id in self.dead_workers.iter_stalled(HELD, by):
            try:
                requeued += await self._requeue_stalled(worker, response_id)
            except codec.UnreadableError as error:
                logger.error("could not read a stalled job of a dead worker, skipping it: %s: %s", response_id, error)
        return requeued

    async def apply_noted(self) -> None:
        """Write in other partitions what the last commits of dead workers have to, as far as these answer."""
        for number in await self.served.having_notes():
            with suppress(ApiError):  # the next look finds it
                await apply_noted(self._records, number)

    async def held_by(self, worker: str) -> set[str]:
        """Return the response ids of the jobs that the worker holds."""
        return await held_in(self._records, self.numbers_of(worker), f"h/{worker}/")

    def numbers_of(self, worker: str) -> set[int]:
        """Return the partitions in which the worker has leases, and so may hold responses."""
        return {self.served.number_of(tag) for tag in self.leases.tags(worker)}

    async def requeue_own(self, worker: str, response_id: str, *, counts: bool) -> bool:
        """Requeue a job that this worker holds and does not run; return whether it was requeued.

        Args:
            counts: whether the try counts, because it ended with a defect. It does not count if the answer to the claim
                was lost, or if the worker dropped the job during an outage of the store.
        """
        if job := await self._found(worker, response_id):
            tries = job.state.tries - (not counts)
            return await self._requeue(job, replace(job.state, worker=None, tries=tries), [])
        return False

    async def _requeue_stalled(self, worker: str, response_id: str) -> bool:
        if job := await self._found(worker, response_id):
            state = replace(job.state, worker=None, lost=[*job.state.lost, worker])
            if await self._requeue(job, state, [is_stalled(worker, response_id)]):
                # The dead worker cannot log it.
                logger.warning(
                    "requeued a job because the lease of its worker expired: %s (worker %s)",
                    response_id,
                    worker,
                    extra={"response_id": response_id},
                )
                return True
        return False

    async def _found(self, worker: str, response_id: str) -> Job | None:
        """Return the job if the worker holds it; otherwise delete its stale `h/` row and return None."""
        job = await self.find(response_id)
        if job is None or job.state.worker != worker:
            await self._drop(f"h/{worker}/{response_id}", response_id, job)
            return None
        return job

    async def _drop(self, row: str, response_id: str, job: Job | None) -> None:
        """Delete a row that does not match the job's state, unless the job has changed since it was read."""
        with suppress(Conflict):
            await self._records.commit([Delete(row)], [job.fence if job else VersionIs(f"j/{response_id}", None)])

    async def _requeue(self, job: Job, state: JobState, conditions: list[Condition]) -> bool:
        number = self.served.number_of(tag_of(job.response_id))
        ops: list[Op] = [
            Delete(f"h/{job.state.worker}/{job.response_id}"),
            _in_queue(job.response_id, state),
            Put(f"j/{job.response_id}", state.encode()),
            Notify(takeover_channel(job.state.worker)),
            *await self.served.announced(number),
            Notify(QUEUE),
        ]
        changed = await self._change(job, state, ops, conditions) is not None
        if changed:
            self.served.found(number)
        return changed

    async def _change(self, job: Job, state: JobState, ops: list[Op], conditions: list[Condition]) -> Job | None:
        """Commit the job's new state and return the job as it is then; return None if a condition does not hold."""
        if not await committed(self._records, ops, [job.fence, *conditions]):
            return None
        return Job(job.response_id, state, job.version + 1)


def _full(reason: str) -> ApiError:
    return ApiError(429, f"{reason} Try again later.", code="rate_limit_exceeded", retry_after=_RETRY_AFTER_SECONDS)


def _first_checkpoint(
    body: Json, sealed: str | None, *, numbered: int = QUEUED_EVENTS, queued_at: float | None = None
) -> Checkpoint:
    return Checkpoint(
        body,
        numbered=numbered,
        sealed=sealed,
        trace=trace_headers(),
        queued_at=queued_at,
        request_id=known("x_request_id"),
    )


def takeover_channel(worker: str | None) -> str:
    """Return the name of the notification that a job of this worker was taken over or requeued."""
    return f"h/{worker}"


def _class_of(row: str) -> WorkClass:
    """Return the class of the job of a row of the queue."""
    return WorkClass.of(row.split("/")[1])


def _waiting(kind: WorkClass) -> str:
    """Return the prefix of the rows of the waiting jobs of a class."""
    return f"q/{kind or _ALL_TIMES}"


def _in_queue(response_id: str, state: JobState) -> Put:
    return Put(f"q/{state.order}/{response_id}", InQueue(name_of(state.owner), state.model).encode())
