"""The job queue as records: which jobs wait, which worker holds which job, and how far each job is.

    j/<response>            the job's state (`Job`); small, since each claim and release writes it
    k/<response>            the request and the job's progress (`Checkpoint`)
    q/<order>/<response>    the job waits; the lowest order is next (`fair_order.py`); the value is its owner's name
    d/<owner>/<response>    a background response of this authenticated owner waits or runs
    p/<worker>              the worker's lease: it expires unless a heartbeat renews it; the value is when
    h/<worker>/<response>   the worker holds the job

Every step of a job is a commit on the condition that the version of its `j/` row has not changed: the fence. A worker
that takes a job over, after the death of the previous one or to cancel it, writes that row. From then on, all commits
of the previous worker fail (a fencing token, as in Kleppmann, "How to do distributed locking", 2016).
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from math import inf
from typing import Final, Literal

from ..core.owner import Owner
from ..core.types import Json
from ..intervals import DEFAULT
from ..logs import get_logger, known
from ..store import codec
from ..store.decoder import Decoder
from ..store.hashing import Hasher
from ..store.reading import computed
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
    committed,
    pages_of,
)
from ..telemetry.trace_context import trace_headers
from . import fair_order as turns
from .hints import Hints
from .quota import Quotas

type Verdict = Literal["cancelled", "failed"]

logger = get_logger(__name__)

TRIES: Final = 3
"""Maximum tries of a job between two checkpoints: a job that keeps crashing its worker is not tried again.

Only tries that end with the death of the worker or with a defect count. A try that ends with an outage of the store,
while its worker is alive, is not counted.
"""

BEGUN: Final = 2
"""The number of events that a queued response has: those of `Assembler.enqueue`."""

QUEUE: Final = "q"
"""The name of the notification that a job is waiting."""

_MAX_CLAIM_WINDOW: Final = 8
"""Most jobs at the head of the queue from which a worker chooses one to claim."""

_PAGE: Final = 500

_DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Job:
    """A job's state.

    Attributes:
        owner: principal, attributes and tenant of the owner.
        order: its place in the queue.
        worker: the worker that holds it; None while it waits.
        tries: how often it was started, less the tries that do not count.
        verdict: how to end the job without running it any further; None to run it.
        lost: the workers whose lease expired while they held the job, one entry per try. Such a try counts until the
            worker is seen alive again: the lease of a living worker expires during an outage of the store.
        starts: how often it was started.
        began: when it was first started, in seconds since the epoch on that worker's clock; None if it never was, or if
            an earlier version started it.
    """

    owner: Owner
    order: str
    worker: str | None = None
    tries: int = 0
    verdict: Verdict | None = None
    lost: Sequence[str] = ()
    starts: int = 0
    began: float | None = None

    def encode(self) -> bytes:
        """Return the record's value."""
        return codec.encode(asdict(self) | {"owner": self.owner.encode()})

    @staticmethod
    def decode(record: Record) -> Job:
        """Return the job of a record that `encode` wrote."""
        stored = codec.decode(record.value)
        return Job(**codec.known(Job, {**stored, "owner": Owner(*stored["owner"])}))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a worker needs to start a job, or to continue it after its last finished step.

    Attributes:
        body: the request's JSON without its input, which is stored with the response.
        said: the items that the finished rounds added to the conversation.
        output: the response's output after the finished rounds.
        usage: the tokens of the finished rounds: input, output, cached, cache writes, reasoning.
        rounds: number of finished rounds.
        waiting: the calls of the last round that are not answered yet, as fields of `ServerCall`.
        ends: whether the client has to act once these calls are answered.
        numbered: number of events sent up to this checkpoint; at first those of `Assembler.enqueue`, or 0 if the
            response was never queued.
        held_events: later events, held until the first of the calls is answered.
        sealed: the request's secrets, sealed for this job; None if it has none.
        tries: `Job.tries` at this checkpoint: tries before it do not count towards `TRIES`, since the job progressed.
        trace: the trace context headers of the request (W3C Trace Context).
        queued_at: when the job was queued, in seconds since the epoch; None if it never was.
        request_id: the id of the request, for log lines; None if an earlier version stored the job.
        timing: when its rounds and tool calls were made up to this checkpoint; None if none were.
    """

    body: Json
    said: Sequence[Json] = ()
    output: Sequence[Json] = ()
    usage: Sequence[int] = (0, 0, 0, 0, 0)
    rounds: int = 0
    waiting: Sequence[Json] = ()
    ends: bool = False
    numbered: int = BEGUN
    sealed: str | None = None
    tries: int = 0
    trace: Mapping[str, str] = field(default_factory=dict)
    queued_at: float | None = None
    held_events: Sequence[Json] = ()
    timing: Json | None = None
    request_id: str | None = None

    async def encode(self) -> bytes:
        """Return the record's value."""
        value = {each.name: getattr(self, each.name) for each in fields(self)}
        return await computed(partial(codec.encode, value), value)

    @staticmethod
    async def decode(record: Record, decoder: Decoder) -> Checkpoint:
        """Return the checkpoint of a record that `encode` wrote."""
        [stored] = await decoder.decode([record.value])
        return Checkpoint(**codec.known(Checkpoint, stored))


@dataclass(frozen=True, slots=True)
class Lease:
    """A job as it was read or claimed.

    Attributes:
        response_id: the id of its response.
        job: its state.
        version: the version of the job's row, which is the fencing token: any change of the row ends the lease.
    """

    response_id: str
    job: Job
    version: int

    @property
    def fence(self) -> Condition:
        """The condition that the job's row has not changed."""
        return VersionIs(f"j/{self.response_id}", self.version)

    def delete_ops(self) -> list[Op]:
        """Return the ops that delete the job."""
        rows = [f"j/{self.response_id}", f"k/{self.response_id}", f"h/{self.job.worker}/{self.response_id}"]
        if not self.job.owner.is_anonymous:
            rows.append(f"{_all_of(self.job.owner)}{self.response_id}")
        return [*map(Delete, rows), Notify(self.response_id)]


class JobQueue:
    """A queue of jobs for all processes that share a store; each job is held by one worker at a time.

    Args:
        records: the store.
        limit: how many jobs may wait; concurrent processes may exceed it a little.
        per_user: how many background responses of one authenticated owner may wait or run; as exact as `limit`.
        lease_seconds: how long a worker counts as alive after a heartbeat, on the store's clock.
        page_rows: most rows of the queue that one round trip reads.
        decoder: decodes checkpoints.
    """

    def __init__(
        self,
        records: Records,
        limit: int,
        per_user: int | None = None,
        lease_seconds: float = DEFAULT.lease_seconds,
        page_rows: int = _PAGE,
        decoder: Decoder | None = None,
    ) -> None:
        self._records = records
        self._decoder = decoder or Decoder()
        self._lease_seconds = lease_seconds
        self._page_rows = page_rows
        self._limit = limit
        self._per_user = limit if per_user is None else per_user
        self._quotas = Quotas(records)
        self._turns = turns.FairOrder()
        self._hints = Hints(records)

    @asynccontextmanager
    async def enqueued(
        self, response_id: str, owner: Owner, body: Json, sealed: str | None = None
    ) -> AsyncIterator[list[Op]]:
        """Yield the ops that store a waiting job; the block commits them together with the job's response.

        Raises:
            ApiError: 429, too many jobs wait, or the owner has too many.
        """
        async with AsyncExitStack() as places:
            full = "Too many background responses are queued. Try again later."
            await places.enter_async_context(self._quotas.one_more("q/", self._limit, full))
            if not owner.is_anonymous:
                full = f"You have {self._per_user} background responses queued or running. Try again later."
                await places.enter_async_context(self._quotas.one_more(_all_of(owner), self._per_user, full))
            of, now = name_of(owner), await self._records.now()
            known = self._hints.over(await self._records.get_many([turns.last_of(of), turns.PRESENT]))
            order, hints = self._turns.give(of, known, now)
            ops: list[Op] = [
                Put(f"j/{response_id}", Job(owner, order).encode()),
                Put(f"k/{response_id}", await _first_checkpoint(body, sealed, queued_at=now).encode()),
                _in_queue(response_id, order, owner),
            ]
            if not owner.is_anonymous:
                # A server of an earlier version does not delete this row when it ends the response: it expires.
                ops.append(Put(f"{_all_of(owner)}{response_id}", b"", expires_at=now + _DAY))
            yield ops
            self._hints.put(*hints)

    async def open(
        self, response_id: str, owner: Owner, body: Json, worker: str, sealed: str | None = None
    ) -> tuple[Lease, list[Op]]:
        """Return a job that this worker holds from the start, and the ops that store it.

        The caller commits the ops together with the job's response.
        """
        now = await self._records.now()
        job = Job(owner, turns.at(now), worker, tries=1, starts=1, began=now)
        ops: list[Op] = [
            Put(f"j/{response_id}", job.encode()),
            Put(f"k/{response_id}", await _first_checkpoint(body, sealed, numbered=0).encode()),
            Put(f"h/{worker}/{response_id}", b""),
        ]
        return Lease(response_id, job, 1), ops

    async def claim(self, worker: str, passed_over: Set[str] = frozenset()) -> Lease | None:
        """Claim the next waiting job; return None if there is none, or none that can be decoded.

        Args:
            passed_over: the names of owners whose jobs are skipped.
        """
        reach = 1
        unreadable: set[str] = set()
        while rows := await self._next(reach, unreadable, passed_over):
            row = random.choice(rows)  # noqa: S311 (no secret)
            try:
                lease = await self._take(row, worker)
            except codec.UnreadableError as error:
                logger.error("could not read a queued job, skipping it: %s: %s", row, error)
                unreadable.add(row)
                continue
            if lease is not None:
                return lease
            # Another worker has claimed it. Choose among more jobs, so that the workers do not collide again.
            reach = min(2 * reach, _MAX_CLAIM_WINDOW)
        return None

    async def _next(self, reach: int, unreadable: Set[str], passed_over: Set[str]) -> list[str]:
        """Return the keys of the next waiting jobs, at most `reach`."""
        start, found = "q/", list[str]()
        # With owners to skip, read whole pages: many of their rows may come before a row of another owner.
        most = self._page_rows if passed_over else reach + len(unreadable)
        while rows := await self._records.range(start, after_prefix("q/"), limit=most):
            found += [key for key, of in rows if key not in unreadable and of.value.decode() not in passed_over]
            if len(found) >= reach or len(rows) < most:
                break
            start = rows[-1][0] + "\0"
        return found[:reach]

    async def _take(self, row: str, worker: str) -> Lease | None:
        response_id = row.rpartition("/")[2]
        records = await self._records.get_many([f"j/{response_id}", f"k/{response_id}", turns.PRESENT])
        found = _lease_of(response_id, records)
        if found is None or found.job.worker is not None:
            await self._drop(row, response_id, found)
            return None
        job = await self._without_living(found.job)
        began = time.time() if job.began is None else job.began
        job = replace(job, worker=worker, tries=job.tries + 1, starts=job.starts + 1, began=began)
        checkpoint = await self._checkpoint_of(response_id, records)
        if checkpoint is not None and job.tries - checkpoint.tries > TRIES:
            job = replace(job, verdict=job.verdict or "failed")
        ops: list[Op] = [
            Delete(row),
            Put(f"j/{response_id}", job.encode()),
            Put(f"h/{worker}/{response_id}", b""),
        ]
        lease = await self._change(found, job, ops, [])
        if lease is not None:
            self._hints.put(turns.taken(job.order, self._hints.over(records)))
        return lease

    async def _without_living(self, job: Job) -> Job:
        """Return the job without the tries of workers whose lease expired and that are alive again."""
        if not job.lost:
            return job
        living = await self._records.get_many([f"p/{worker}" for worker in dict.fromkeys(job.lost)])
        lost = [worker for worker in job.lost if f"p/{worker}" not in living]
        return replace(job, lost=lost, tries=job.tries - (len(job.lost) - len(lost)))

    async def waiting(self) -> tuple[int, float]:
        """Return how many jobs wait, and for how many seconds the longest has waited; 0 without any."""
        count, oldest = 0, inf
        async for rows in pages_of(self._records, "q/", self._page_rows):
            count += len(rows)
            oldest = min(oldest, *(turns.queued_at(key.split("/")[1]) for key, _ in rows))
        return count, max(await self._records.now() - oldest, 0.0) if count else 0.0

    async def noted(self) -> None:
        """Wait until the hints about turns assigned and claimed here are written."""
        await self._hints.written()

    async def find(self, response_id: str) -> Lease | None:
        """Return the job as it is now, whichever worker holds it; None if it has ended or never existed."""
        return _lease_of(response_id, await self._records.get_many([f"j/{response_id}"]))

    async def find_many(self, response_ids: Sequence[str]) -> dict[str, Lease]:
        """Return the jobs of these responses that have not ended, by response id."""
        found = await self._records.get_many([f"j/{each}" for each in response_ids]) if response_ids else {}
        leases = {each: _lease_of(each, found) for each in response_ids}
        return {each: lease for each, lease in leases.items() if lease}

    async def checkpoint(self, response_id: str) -> Checkpoint | None:
        """Return the job's checkpoint; None if the job has ended."""
        return await self._checkpoint_of(response_id, await self._records.get_many([f"k/{response_id}"]))

    async def _checkpoint_of(self, response_id: str, records: Mapping[str, Record]) -> Checkpoint | None:
        record = records.get(f"k/{response_id}")
        return await Checkpoint.decode(record, self._decoder) if record else None

    async def still_held(self, leases: Sequence[Lease]) -> set[str]:
        """Return the response ids of the leases whose jobs have not changed."""
        found = await self._records.get_many([f"j/{each.response_id}" for each in leases])
        versions = {key.removeprefix("j/"): record.version for key, record in found.items()}
        return {each.response_id for each in leases if versions.get(each.response_id) == each.version}

    async def take_over(self, response_id: str, worker: str, verdict: Verdict) -> Lease | None:
        """Claim the job, even from another worker, to end it with `verdict`.

        Return None if the job has ended, or if a worker already holds it with that verdict.
        """
        while found := await self.find(response_id):
            if found.job.worker and found.job.verdict == verdict:
                return None
            job = replace(found.job, worker=worker, verdict=verdict)
            ops: list[Op] = [
                Delete(f"q/{found.job.order}/{response_id}"),
                Delete(f"h/{found.job.worker}/{response_id}"),
                Put(f"h/{worker}/{response_id}", b""),
                Put(f"j/{response_id}", job.encode()),
                Notify(takeover_channel(found.job.worker)),
            ]
            if lease := await self._change(found, job, ops, []):
                return lease
        return None

    async def release(self, lease: Lease) -> None:
        """Requeue the job and do not count this try; do nothing if another worker has changed the job."""
        await self._requeue(lease, replace(lease.job, worker=None, tries=lease.job.tries - 1), [])

    async def notify_workers(self) -> None:
        """Notify the other processes of waiting jobs, if there are any."""
        if await self._records.range("q/", after_prefix("q/"), limit=1):
            await self._records.commit([Notify(QUEUE)])

    async def heartbeat(self, worker: str) -> None:
        """Renew the worker's lease."""
        until = await self._records.now() + self._lease_seconds
        await self._records.commit([Put(f"p/{worker}", repr(until).encode(), expires_at=until)])

    async def deregister(self, worker: str) -> None:
        """Delete the worker's lease: the jobs that it holds are stalled from now on."""
        await self._records.commit([Delete(f"p/{worker}")])

    async def requeue_stalled(self) -> int:
        """Requeue the jobs of dead workers, and return how many were requeued."""
        rescued = 0
        async for worker, response_id in iter_stalled(self._records, "h/"):
            try:
                rescued += await self._requeue_stalled(worker, response_id)
            except codec.UnreadableError as error:
                logger.error("could not read a stalled job of a dead worker, skipping it: %s: %s", response_id, error)
        return rescued

    async def held_by(self, worker: str) -> set[str]:
        """Return the response ids of the jobs that the worker holds."""
        prefix = f"h/{worker}/"
        pages = pages_of(self._records, prefix)
        return {key.removeprefix(prefix) async for rows in pages for key, _ in rows}

    async def reclaim(self, worker: str, response_id: str, *, counts: bool) -> bool:
        """Requeue a job that this worker holds and does not run; return whether it was requeued.

        Args:
            counts: whether the try counts, because it ended with a defect. It does not count if the answer to the claim
                was lost, or if the worker dropped the job during an outage of the store.
        """
        if found := await self._found(worker, response_id):
            tries = found.job.tries - (not counts)
            return await self._requeue(found, replace(found.job, worker=None, tries=tries), [])
        return False

    async def _requeue_stalled(self, worker: str, response_id: str) -> bool:
        if found := await self._found(worker, response_id):
            job = replace(found.job, worker=None, lost=[*found.job.lost, worker])
            return await self._requeue(found, job, [is_stalled(worker)])
        return False

    async def _found(self, worker: str, response_id: str) -> Lease | None:
        """Return the job if the worker holds it; otherwise delete its stale `h/` row and return None."""
        found = await self.find(response_id)
        if found is None or found.job.worker != worker:
            await self._drop(f"h/{worker}/{response_id}", response_id, found)
            return None
        return found

    async def _drop(self, row: str, response_id: str, found: Lease | None) -> None:
        """Delete a row that does not match the job's state, unless the job has changed since it was read."""
        with suppress(Conflict):
            await self._records.commit([Delete(row)], [found.fence if found else VersionIs(f"j/{response_id}", None)])

    async def _requeue(self, found: Lease, job: Job, conditions: list[Condition]) -> bool:
        ops: list[Op] = [
            Delete(f"h/{found.job.worker}/{found.response_id}"),
            _in_queue(found.response_id, job.order, job.owner),
            Put(f"j/{found.response_id}", job.encode()),
            Notify(takeover_channel(found.job.worker)),
            Notify(QUEUE),
        ]
        return await self._change(found, job, ops, conditions) is not None

    async def _change(self, found: Lease, job: Job, ops: list[Op], conditions: list[Condition]) -> Lease | None:
        """Commit the job's new state and return its lease; return None if a condition does not hold."""
        if not await committed(self._records, ops, [found.fence, *conditions]):
            return None
        return Lease(found.response_id, job, found.version + 1)


def _lease_of(response_id: str, records: Mapping[str, Record]) -> Lease | None:
    record = records.get(f"j/{response_id}")
    return Lease(response_id, Job.decode(record), record.version) if record else None


def _first_checkpoint(
    body: Json, sealed: str | None, *, numbered: int = BEGUN, queued_at: float | None = None
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


def is_stalled(worker: str) -> Condition:
    """Return the condition that the worker has no lease."""
    return VersionIs(f"p/{worker}", None)


async def iter_stalled(records: Records, prefix: str) -> AsyncIterator[tuple[str, str]]:
    """Yield the worker and the response id of each row `<prefix><worker>/<response>` whose worker has no lease."""
    async for rows in pages_of(records, prefix):
        held = [key.split("/")[1:] for key, _ in rows]
        living = await records.get_many(list({f"p/{worker}" for worker, _ in held}))
        for worker, response_id in held:
            if f"p/{worker}" not in living:
                yield worker, response_id


def name_of(owner: Owner) -> str:
    """Return the owner's name in keys, which does not depend on the owner's groups."""
    return Hasher(owner).owner


def _all_of(owner: Owner) -> str:
    return f"d/{name_of(owner)}/"


def _in_queue(response_id: str, order: str, owner: Owner) -> Put:
    return Put(f"q/{order}/{response_id}", name_of(owner).encode())
