"""Finds what workers hold, and of that what is stalled: the worker has no lease, and is dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Set
from math import inf
from typing import Final

from ..concurrency.tasks import answers_of
from ..core.errors import ApiError
from ..core.ids import tag_of
from ..store.clock import MAX_DIFFERENCE_SECONDS
from ..store.layout import with_tag
from ..store.records import Condition, Delete, Record, Records, VersionIs, committed, pages_in
from .served_partitions import ServedPartitions

_AT_ONCE: Final = 16
"""Partitions that one search reads at a time: one that does not answer holds up no others."""


def lease_key(worker: str, tag: int = 0) -> str:
    """Return the key of a worker's lease for the jobs and the foreground responses with this tag.

    The one of tag 0 is always there while the worker is alive.
    """
    return with_tag(f"p/{worker}", tag)


def is_stalled(worker: str, response_id: str) -> Condition:
    """Return the condition that the worker has no lease for the response."""
    return VersionIs(lease_key(worker, tag_of(response_id)), None)


async def held_in(records: Records, numbers: Iterable[int], prefix: str) -> set[str]:
    """Return the response ids of all rows `<prefix><response>` in those of these partitions that answer.

    Raises:
        ApiError: 503, none answers.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def found_in(number: int) -> list[str]:
        async with turns:
            pages = pages_in(records, number, prefix)
            return [key.removeprefix(prefix) async for rows in pages for key, _ in rows]

    answers = await answers_of(map(found_in, numbers))
    failures = [each for each in answers if isinstance(each, ApiError)]
    if failures and len(failures) == len(answers):
        raise failures[0]
    return {each for answer in answers if not isinstance(answer, ApiError) for each in answer}


class DeadWorkers:
    """Finds what dead workers hold in the partitions that this process serves.

    Args:
        records: the store.
        served: the partitions.
        lease_seconds: how long a worker counts as alive after a heartbeat.
    """

    def __init__(self, records: Records, served: ServedPartitions, lease_seconds: float) -> None:
        self._records, self._served, self._lease_seconds = records, served, lease_seconds
        self._ends: dict[str, float] = {}
        self._silent_at: dict[int, float] = {}

    def renewed(self, worker: str, until: float) -> None:
        """Note until when a worker of this process has its lease, in seconds since the epoch on the store's clock."""
        self._ends[worker] = until

    def note_silent(self, number: int) -> None:
        """Note that a partition has not answered: for a while, living workers may lack leases there."""
        self._silent_at[number] = asyncio.get_running_loop().time()

    async def iter_stalled(self, prefix: str, by: str) -> AsyncIterator[tuple[str, str]]:
        """Yield the worker and the response id of each row `<prefix><worker>/<response>` whose worker has no lease.

        A lease that ends later than that of `by` was written while the clock was ahead. It is deleted: a worker that
        died meanwhile would count as alive until the clock reaches that time, and one that lives has renewed its lease
        by now.

        Args:
            prefix: `served_partitions.HELD` or `FOREGROUND`.
            by: the worker of this process that looks. Once its lease has ended too, it learns nothing of the others:
                this ends.

        Raises:
            ApiError: 503, a partition does not answer; all others were searched before.
        """
        failure: ApiError | None = None
        turns = asyncio.Semaphore(_AT_ONCE)
        numbers = await self._served.having(prefix)
        tasks = [asyncio.create_task(self._found_in(number, prefix, by, turns)) for number in numbers]
        try:
            for finished in asyncio.as_completed(tasks):
                try:
                    stalled = await finished
                except ApiError as error:
                    failure = error
                else:
                    for each in stalled:
                        yield each
        finally:
            for task in tasks:
                task.cancel()
        if failure:
            raise failure

    async def _found_in(self, number: int, prefix: str, by: str, turns: asyncio.Semaphore) -> list[tuple[str, str]]:
        async with turns:
            try:
                return [each async for each in self._stalled_in(number, prefix, by)]
            except ApiError:
                self.note_silent(number)
                raise

    async def _stalled_in(self, number: int, prefix: str, by: str) -> AsyncIterator[tuple[str, str]]:
        async for rows in pages_in(self._records, number, prefix):
            held = [key.split("/")[1:] for key, _ in rows]
            keys = [lease_key(worker, tag_of(response_id)) for worker, response_id in held]
            leases = await self._records.get_many(list(dict.fromkeys(keys)))
            own = self._ends.get(by, -inf)
            if await self._records.now() >= own:
                return
            for key, lease in list(leases.items()):
                if _end_of(lease) > own + MAX_DIFFERENCE_SECONDS and await self._deleted(key, lease):
                    del leases[key]
            unleased = [each for each, key in zip(held, keys, strict=True) if key not in leases]
            alive = await self._about_to_renew(number, {worker for worker, _ in unleased})
            for worker, response_id in unleased:
                if worker not in alive:
                    yield worker, response_id

    async def _about_to_renew(self, number: int, workers: Set[str]) -> Set[str]:
        """Return which of these workers, which have no lease in a partition, may be alive: it was away a moment ago.

        A living worker has its lease of tag 0 all the same, unless that partition was away too.
        """
        if not workers or not self._was_away(number):
            return frozenset()
        if self._was_away(0):
            return workers
        try:
            first = await self._records.get_many([lease_key(worker) for worker in workers])
        except ApiError:
            self.note_silent(0)
            return workers
        return {worker for worker in workers if lease_key(worker) in first}

    async def _deleted(self, key: str, lease: Record) -> bool:
        return await committed(self._records, [Delete(key)], [VersionIs(key, lease.version)])

    def _was_away(self, number: int) -> bool:
        """Whether one of several partitions did not answer a moment ago."""
        silent_at = self._silent_at.get(number, -inf) if self._served.count > 1 else -inf
        return asyncio.get_running_loop().time() - silent_at < self._lease_seconds


def _end_of(lease: Record) -> float:
    """Return when a lease ends, in seconds since the epoch."""
    return float(lease.value)
