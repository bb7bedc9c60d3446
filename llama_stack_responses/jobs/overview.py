"""The jobs of a user that wait or run, on any server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..core.ids import tag_of
from ..core.owner import Owner
from ..store.records import Records, after_prefix
from .dead_workers import lease_key
from .job import InQueue, JobState, name_of

_MAX_QUEUED: Final = 2000
"""Maximum number of rows of the queue that are read; jobs behind them are not seen."""

_MAX_HELD: Final = 1000
"""Maximum number of jobs in workers that are read."""

_MAX_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class JobNow:
    """A job as it is now.

    Attributes:
        response_id: the id of its response.
        position: its position in the queue, from 1; None if it runs.
        worker: the worker that holds it; None if it waits.
        attempt: the number of the current try, or of the next one.
        lease_until: when the lease of the worker expires, in seconds since the epoch on the store's clock; None if it
            has expired, or if no worker holds the job.
    """

    response_id: str
    position: int | None
    worker: str | None
    attempt: int
    lease_until: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """The jobs of a user.

    Attributes:
        jobs: the jobs; of many, the first.
        own_waiting: how many of the user wait.
        waiting: how many of all users wait.
    """

    jobs: list[JobNow]
    own_waiting: int
    waiting: int


async def overview_of(records: Records, owner: Owner) -> Overview:
    """Return the jobs of a user, in four round trips."""
    queued = await records.range("q/", after_prefix("q/"), limit=_MAX_QUEUED)
    own = name_of(owner)
    waiting = [(key, InQueue.decode(row.value).owner) for key, row in queued]
    positions = {key.rpartition("/")[2]: number for number, (key, of) in enumerate(waiting, 1) if of == own}
    held = [key.split("/")[1:] for key, _ in await records.range("h/", after_prefix("h/"), limit=_MAX_HELD)]
    wanted = [*list(positions)[:_MAX_SHOWN], *(response_id for _, response_id in held)]
    records_of = await records.get_many([f"j/{each}" for each in wanted]) if wanted else {}
    states = {key[2:]: JobState.decode(record) for key, record in records_of.items()}
    mine = {each: state for each, state in states.items() if state.owner.identity == owner.identity}
    until = await _leases(records, {each: state.worker for each, state in mine.items() if state.worker})
    # Those that run first, so that many that wait do not hide them.
    ordered = sorted(mine.items(), key=lambda found: found[1].worker is None)
    jobs = [_now(each, state, positions.get(each), until.get(each)) for each, state in ordered[:_MAX_SHOWN]]
    return Overview(jobs, len(positions), len(queued))


async def stalled_of(records: Records) -> dict[str, str]:
    """Return the workers of the jobs of all users that are held by a worker without a lease, by response id."""
    rows = await records.range("h/", after_prefix("h/"), limit=_MAX_HELD)
    held = {response_id: worker for worker, response_id in (key.split("/")[1:] for key, _ in rows)}
    living = await _leases(records, held)
    return {response_id: worker for response_id, worker in held.items() if response_id not in living}


async def leases_of(records: Records, workers: Iterable[str]) -> dict[str, float]:
    """Return when the leases of workers expire, whatever they run, without those that have expired."""
    return await _ends(records, {worker: lease_key(worker) for worker in workers})


async def _leases(records: Records, held: Mapping[str, str]) -> dict[str, float]:
    """Return when the leases of responses expire, given their workers, without those that have expired."""
    return await _ends(records, {each: lease_key(worker, tag_of(each)) for each, worker in held.items()})


async def _ends(records: Records, keys: Mapping[str, str]) -> dict[str, float]:
    """Return when leases expire, given what needs each and its key, without those that have expired."""
    found = await records.get_many(sorted(set(keys.values()))) if keys else {}
    until = {key: float(record.value) for key, record in found.items() if record.value}
    return {each: until[key] for each, key in keys.items() if key in until}


def _now(response_id: str, state: JobState, position: int | None, until: float | None) -> JobNow:
    if state.worker is None:
        return JobNow(response_id, position, None, state.tries + 1, None)
    return JobNow(response_id, None, state.worker, state.tries, until)
