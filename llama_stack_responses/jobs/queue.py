"""Background work as records: who is to do it, who does it, and how far it is.

    j/<response>            the job: small, since every change of hands writes it (`Job`)
    k/<response>            what it takes to run it, and how far it is (`Work`)
    q/<order>/<response>    the job waits; the least order is next (`fair_order.py`); the value is whose it is
    d/<of>/<response>       a background response of this authenticated owner waits or is made
    p/<worker>              the worker lives; goes by itself unless it is renewed
    h/<worker>/<response>   the worker has the job

Every step of a job is a commit on the condition that its `j/` row is still as this worker knows it. Whoever takes a job
over, be it after a death or to cancel it, writes that row, and from then on nothing that the other does is kept.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from ..core.owner import Owner
from ..logs import get_logger
from ..store import codec
from ..store.hashing import Hasher
from ..store.records import (
    Condition,
    Conflict,
    Delete,
    Op,
    Put,
    Record,
    Records,
    VersionIs,
    Wake,
    after_prefix,
    committed,
    pages_of,
)
from ..telemetry.trace_context import trace_headers
from . import fair_order as turns
from .hints import Hints
from .quota import Quotas

type Json = dict[str, Any]
type Verdict = Literal["cancelled", "failed"]

logger = get_logger(__name__)

LEASE: Final = 10.0
"""Seconds for which a worker counts as alive after it last said so, on the store's clock."""

TRIES: Final = 3
"""How often a job is begun at one step, at most: work that keeps ending its worker is not begun again.

Only tries count that ended with the death of their worker or with a defect. An outage of the store ends a try too, but
the worker lives: that try is taken back.
"""

RETRY: Final = 1.0
"""Seconds between two tries while the store cannot be reached."""

BEGUN: Final = 2
"""The events of a response that waits: those of `Assembler.enqueue`."""

QUEUE: Final = "q"
"""What is woken when a job waits."""

_REACH: Final = 8
"""How far into the queue a worker reaches, at most."""

_PAGE: Final = 500

_DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Job:
    """A job's state.

    Attributes:
        owner: principal, attributes and tenant of whose it is.
        order: its place in the queue.
        worker: who has it; None while it waits.
        tries: how often it was begun, less the tries that do not count.
        verdict: how it is to end without being run any further.
        lost: the workers whose lease ran out while they had it. Each try of theirs counts until the worker is seen
            alive again: the lease of a living worker runs out when the store cannot be reached.
    """

    owner: Owner
    order: str
    worker: str | None = None
    tries: int = 0
    verdict: Verdict | None = None
    lost: Sequence[str] = ()

    def encode(self) -> bytes:
        """The record's value."""
        return codec.encode(asdict(self) | {"owner": self.owner.encode()})

    @staticmethod
    def decode(record: Record) -> Job:
        """The job that `encode` wrote."""
        stored = codec.decode(record.value)
        return Job(**codec.known(Job, {**stored, "owner": Owner(*stored["owner"])}))


@dataclass(frozen=True, slots=True)
class Work:
    """What it takes to run a job, and how far it is.

    Attributes:
        body: the request's JSON without its input, which is stored with the response.
        said: what the finished rounds added to the conversation.
        output: the response's output after the finished rounds.
        usage: the tokens of the finished rounds: input, output, cached, cache writes, reasoning.
        rounds: how many rounds are finished.
        waiting: the calls of the last one that nobody has answered, as `ServerCall` has them.
        ends: whether the client has to act once they are answered.
        numbered: how many events there are of the finished rounds and before; at first those of `Assembler.enqueue`,
            or none if the response never waited.
        sealed: what of the request only this job may know, if there is any.
        tries: how often the job had been begun when its last step was finished: who gets on is not what ends servers.
        trace: the headers that name the trace which the request was part of.
        queued_at: when it began to wait, in seconds since the epoch; None if it never did.
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

    def encode(self) -> bytes:
        """The record's value."""
        return codec.encode(asdict(self))

    @staticmethod
    def decode(record: Record) -> Work:
        """The work that `encode` wrote."""
        return Work(**codec.known(Work, codec.decode(record.value)))


@dataclass(frozen=True, slots=True)
class Held:
    """A job that this worker has.

    Attributes:
        response_id: whose job it is.
        job: its state.
        version: that of the job's row: whoever else writes it has taken the job over.
    """

    response_id: str
    job: Job
    version: int

    @property
    def fence(self) -> Condition:
        """Holds for as long as nobody has taken the job over."""
        return VersionIs(f"j/{self.response_id}", self.version)

    def gone(self) -> list[Op]:
        """What removes the job."""
        rows = [f"j/{self.response_id}", f"k/{self.response_id}", f"h/{self.job.worker}/{self.response_id}"]
        if not self.job.owner.is_anonymous:
            rows.append(f"{_all_of(self.job.owner)}{self.response_id}")
        return [*map(Delete, rows), Wake(self.response_id)]


class Jobs:
    """Hands jobs out, one worker each, over all processes that share the records.

    Args:
        records: where the jobs are.
        limit: how many may wait, about.
        per_owner: how many of one authenticated owner may wait or be made, about.
    """

    def __init__(self, records: Records, limit: int, per_owner: int | None = None) -> None:
        self._records = records
        self._limit = limit
        self._per_owner = limit if per_owner is None else per_owner
        self._quotas = Quotas(records)
        self._turns = turns.Turns()
        self._hints = Hints(records)

    @asynccontextmanager
    async def enqueued(
        self, response_id: str, owner: Owner, body: Json, sealed: str | None = None
    ) -> AsyncIterator[list[Op]]:
        """What stores a waiting job, for a commit together with its response that is made within the block.

        Raises:
            ApiError: 429, if too many are waiting, or too many are the owner's.
        """
        async with AsyncExitStack() as places:
            full = "Too many background responses are waiting. Try again later."
            await places.enter_async_context(self._quotas.one_more("q/", self._limit, full))
            if not owner.is_anonymous:
                full = f"You have {self._per_owner} background responses that wait or are made. Try again later."
                await places.enter_async_context(self._quotas.one_more(_all_of(owner), self._per_owner, full))
            of, now = name_of(owner), await self._records.now()
            known = self._hints.over(await self._records.get_many([turns.last_of(of), turns.PRESENT]))
            order, hints = self._turns.give(of, known, now)
            ops: list[Op] = [
                Put(f"j/{response_id}", Job(owner, order).encode()),
                Put(f"k/{response_id}", Work(body, sealed=sealed, trace=trace_headers(), queued_at=now).encode()),
                _in_queue(response_id, order, owner),
            ]
            if not owner.is_anonymous:
                # A server of an earlier version that ends the response leaves it.
                ops.append(Put(f"{_all_of(owner)}{response_id}", b"", expires_at=now + _DAY))
            yield ops
            self._hints.put(*hints)

    async def open(
        self, response_id: str, owner: Owner, body: Json, worker: str, sealed: str | None = None
    ) -> tuple[Held, list[Op]]:
        """A job that never waits: this worker's from the beginning on, by a commit together with its response."""
        job = Job(owner, turns.at(await self._records.now()), worker, tries=1)
        ops: list[Op] = [
            Put(f"j/{response_id}", job.encode()),
            Put(f"k/{response_id}", Work(body, numbered=0, sealed=sealed, trace=trace_headers()).encode()),
            Put(f"h/{worker}/{response_id}", b""),
        ]
        return Held(response_id, job, 1), ops

    async def claim(self, worker: str, passed_over: Set[str] = frozenset()) -> Held | None:
        """The next waiting job, which is this worker's from now on; None if none waits that can be read here.

        Args:
            passed_over: the names of owners whose jobs are left waiting.
        """
        reach = 1
        unreadable: set[str] = set()
        while rows := await self._next(reach, unreadable, passed_over):
            row = random.choice(rows)  # noqa: S311 (no secret)
            try:
                held = await self._take(row, worker)
            except codec.UnreadableError as error:
                logger.error("background work that cannot be read is left waiting: %s: %s", row, error)
                unreadable.add(row)
                continue
            if held is not None:
                return held
            # Somebody else took it. Workers that all reach for the first would get in one another's way.
            reach = min(2 * reach, _REACH)
        return None

    async def _next(self, reach: int, unreadable: Set[str], passed_over: Set[str]) -> list[str]:
        """The keys of the next waiting jobs, at most `reach`."""
        start, found = "q/", list[str]()
        # Between those of other owners are at most as many as an owner who is passed over may have.
        most = _PAGE if passed_over else reach + len(unreadable)
        while rows := await self._records.range(start, after_prefix("q/"), limit=most):
            found += [key for key, of in rows if key not in unreadable and of.value.decode() not in passed_over]
            if len(found) >= reach or len(rows) < most:
                break
            start = rows[-1][0] + "\0"
        return found[:reach]

    async def _take(self, row: str, worker: str) -> Held | None:
        response_id = row.rpartition("/")[2]
        records = await self._records.get_many([f"j/{response_id}", f"k/{response_id}", turns.PRESENT])
        found, work = _held(response_id, records), _work(response_id, records)
        if found is None or found.job.worker is not None:
            await self._drop(row, response_id, found)
            return None
        job = await self._without_living(found.job)
        job = replace(job, worker=worker, tries=job.tries + 1)
        if work is not None and job.tries - work.tries > TRIES:
            job = replace(job, verdict=job.verdict or "failed")
        ops: list[Op] = [
            Delete(row),
            Put(f"j/{response_id}", job.encode()),
            Put(f"h/{worker}/{response_id}", b""),
        ]
        held = await self._change(found, job, ops, [])
        if held is not None:
            self._hints.put(turns.taken(job.order, self._hints.over(records)))
        return held

    async def _without_living(self, job: Job) -> Job:
        """The job without the tries of workers that lost it and turn out to be alive."""
        if not job.lost:
            return job
        living = await self._records.get_many([f"p/{worker}" for worker in dict.fromkeys(job.lost)])
        lost = [worker for worker in job.lost if f"p/{worker}" not in living]
        return replace(job, lost=lost, tries=job.tries - (len(job.lost) - len(lost)))

    async def noted(self) -> None:
        """Returns when other processes can read which turns were given and taken here."""
        await self._hints.written()

    async def find(self, response_id: str) -> Held | None:
        """The job as it is now, whoever has it; None if there is none any longer."""
        return _held(response_id, await self._records.get_many([f"j/{response_id}"]))

    async def work(self, response_id: str) -> Work | None:
        """What it takes to run the job; None if there is no job any longer."""
        return _work(response_id, await self._records.get_many([f"k/{response_id}"]))

    async def still_held(self, held: Sequence[Held]) -> set[str]:
        """The ids of those jobs that nobody has taken over."""
        found = await self._records.get_many([f"j/{each.response_id}" for each in held])
        versions = {key.removeprefix("j/"): record.version for key, record in found.items()}
        return {each.response_id for each in held if versions.get(each.response_id) == each.version}

    async def seize(self, response_id: str, worker: str, verdict: Verdict) -> Held | None:
        """Takes the job from whoever has it, to end it; None if it has ended, or somebody is about to end it so."""
        while found := await self.find(response_id):
            if found.job.worker and found.job.verdict == verdict:
                return None
            job = replace(found.job, worker=worker, verdict=verdict)
            ops: list[Op] = [
                Delete(f"q/{found.job.order}/{response_id}"),
                Delete(f"h/{found.job.worker}/{response_id}"),
                Put(f"h/{worker}/{response_id}", b""),
                Put(f"j/{response_id}", job.encode()),
                Wake(taken_from(found.job.worker)),
            ]
            if held := await self._change(found, job, ops, []):
                return held
        return None

    async def give_back(self, held: Held) -> None:
        """Lets the job wait again, as if it had not been begun this time; others may have taken it over meanwhile."""
        await self._requeue(held, replace(held.job, worker=None, tries=held.job.tries - 1), [])

    async def call_others(self) -> None:
        """Has other processes look at the queue, if anything waits there."""
        if await self._records.range("q/", after_prefix("q/"), limit=1):
            await self._records.commit([Wake(QUEUE)])

    async def breathe(self, worker: str) -> None:
        """Says that the worker lives."""
        await self._records.commit([Put(f"p/{worker}", b"", expires_at=await self._records.now() + LEASE)])

    async def retire(self, worker: str) -> None:
        """Says that the worker lives no more; what it has waits again as soon as anybody looks."""
        await self._records.commit([Delete(f"p/{worker}")])

    async def rescue(self) -> int:
        """Lets the jobs of dead workers wait again; how many they were."""
        rescued = 0
        async for worker, response_id in left_by_the_dead(self._records, "h/"):
            try:
                rescued += await self._rescue(worker, response_id)
            except codec.UnreadableError as error:
                logger.error("work of a dead server that cannot be read is left: %s: %s", response_id, error)
        return rescued

    async def held_by(self, worker: str) -> set[str]:
        """The ids of the jobs that the worker has."""
        prefix = f"h/{worker}/"
        pages = pages_of(self._records, prefix)
        return {key.removeprefix(prefix) async for rows in pages for key, _ in rows}

    async def recover(self, worker: str, response_id: str, *, counts: bool) -> bool:
        """Lets a job wait again that this living worker has and does not work on.

        Args:
            counts: whether the try ended with a defect. It does not count if the store did not say that the worker had
                the job, or could not be reached for so long that the worker had to give the job up.
        """
        if found := await self._found(worker, response_id):
            tries = found.job.tries - (not counts)
            return await self._requeue(found, replace(found.job, worker=None, tries=tries), [])
        return False

    async def _rescue(self, worker: str, response_id: str) -> bool:
        if found := await self._found(worker, response_id):
            job = replace(found.job, worker=None, lost=[*found.job.lost, worker])
            return await self._requeue(found, job, [is_dead(worker)])
        return False

    async def _found(self, worker: str, response_id: str) -> Held | None:
        """The job, if the worker has it; if not, the row that says so is dropped."""
        found = await self.find(response_id)
        if found is None or found.job.worker != worker:
            await self._drop(f"h/{worker}/{response_id}", response_id, found)
            return None
        return found

    async def _drop(self, row: str, response_id: str, found: Held | None) -> None:
        """Removes a row that does not belong to the job, unless the job has changed since it was found."""
        with suppress(Conflict):
            await self._records.commit([Delete(row)], [found.fence if found else VersionIs(f"j/{response_id}", None)])

    async def _requeue(self, found: Held, job: Job, conditions: list[Condition]) -> bool:
        ops: list[Op] = [
            Delete(f"h/{found.job.worker}/{found.response_id}"),
            _in_queue(found.response_id, job.order, job.owner),
            Put(f"j/{found.response_id}", job.encode()),
            Wake(taken_from(found.job.worker)),
            Wake(QUEUE),
        ]
        return await self._change(found, job, ops, conditions) is not None

    async def _change(self, found: Held, job: Job, ops: list[Op], conditions: list[Condition]) -> Held | None:
        """Commits what gives the job a new state; None if somebody else has."""
        if not await committed(self._records, ops, [found.fence, *conditions]):
            return None
        return Held(found.response_id, job, found.version + 1)


def _held(response_id: str, records: Mapping[str, Record]) -> Held | None:
    record = records.get(f"j/{response_id}")
    return Held(response_id, Job.decode(record), record.version) if record else None


def _work(response_id: str, records: Mapping[str, Record]) -> Work | None:
    record = records.get(f"k/{response_id}")
    return Work.decode(record) if record else None


def taken_from(worker: str | None) -> str:
    """What is woken when somebody else has taken a job of this worker's."""
    return f"h/{worker}"


def is_dead(worker: str) -> Condition:
    """Holds for as long as the worker does not live."""
    return VersionIs(f"p/{worker}", None)


async def left_by_the_dead(records: Records, prefix: str) -> AsyncIterator[tuple[str, str]]:
    """The worker and the response of each row `<prefix><worker>/<response>` whose worker is dead."""
    async for rows in pages_of(records, prefix):
        held = [key.split("/")[1:] for key, _ in rows]
        living = await records.get_many(list({f"p/{worker}" for worker, _ in held}))
        for worker, response_id in held:
            if f"p/{worker}" not in living:
                yield worker, response_id


def name_of(owner: Owner) -> str:
    """What stands for the owner in keys, whatever their groups are."""
    return Hasher(owner).owner


def _all_of(owner: Owner) -> str:
    return f"d/{name_of(owner)}/"


def _in_queue(response_id: str, order: str, owner: Owner) -> Put:
    return Put(f"q/{order}/{response_id}", name_of(owner).encode())
