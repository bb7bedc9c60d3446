"""Which partitions of the store a worker serves, and in which order it looks for jobs in them.

One living worker serves a partition: it looks there for jobs, for what dead workers hold or have yet to write in other
partitions, and for event logs that have expired. It is the worker whose name, hashed with the number of the partition,
is the greatest (rendezvous hashing; Thaler and Ravishankar, 1998). So a worker that starts or ends changes only its own
partitions.

A worker looks at its partitions, with one call for each, when it gets further ones, when a worker has died, and at
intervals for what no one noted. A worker that has no room for the jobs of a partition, or requeues one, writes a row
for it, and workers that have room look there too. So does one without room for what other rows stand for, such as
batches, which others see at their next look:

    qh/<partition>             jobs wait in this partition; it expires
    qr/<partition>/<prefix>    rows of this prefix wait in this partition; it expires

No claim and no look waits for a partition that did not answer. A task tries it in the meantime, until it answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import compress, count
from math import inf
from typing import Final

from ..concurrency.tasks import LoopTask, answers_of
from ..core.errors import ApiError
from ..store.layout import OUTBOX, with_tag
from ..store.records import Put, Records, after_prefix, filled_in, partitions_of, range_in
from ..store.routing import tag_of_key

QUEUED: Final = "q/"
"""The prefix of the rows of waiting jobs."""
HELD: Final = "h/"
"""The prefix of the rows of jobs that workers hold."""
FOREGROUND: Final = "o/"
"""The prefix of the rows of foreground responses that workers run."""
NOTED: Final = OUTBOX
"""The prefix of the rows that note what commits write in other partitions."""
EXPIRING: Final = "t/"
"""The prefix of the rows that say when event logs expire."""

_ANNOUNCED: Final = "qh/"
_WAITING: Final = "qr/"
_ANNOUNCED_SECONDS: Final = 30.0
_MAX_WAITING: Final = 4_096
_MAX_WORKERS: Final = 10_000
"""Leases of workers that are read at most."""
_TRY_SECONDS: Final = 0.5
"""Interval between two tries of a partition that does not answer."""
MOMENT_SECONDS: Final = 0.5
"""How long a heartbeat waits for a partition that may be away, so that it does not come late itself."""
_BLIND_SECONDS: Final = 2.5
"""Interval in which a worker looks at its partitions while one does not answer, or that of these rows does not."""


class ServedPartitions:
    """The partitions of one process.

    Args:
        records: the store.
        look_seconds: maximum interval between two looks at all own partitions; None if this process serves all
            partitions, and looks at them whenever it is asked for something.

    Attributes:
        own: the partitions that this process serves.
    """

    def __init__(self, records: Records, look_seconds: float | None) -> None:
        self._records, self._look_seconds = records, look_seconds or 0.0
        self.count: Final = partitions_of(records)
        """The number of all partitions."""
        self.own: Sequence[int] = range(self.count)
        self._shares = look_seconds is not None and self.count > 1
        self._living = frozenset[str]()
        self._waiting: dict[int, None] = {}
        self._with_rows: dict[str, Sequence[int]] = dict.fromkeys((HELD, FOREGROUND, NOTED, EXPIRING), self.own)
        self._looked_at, self._looking = -inf, asyncio.Lock()
        self._announced_at = dict[str, float]()
        self._watched = dict[str, WatchedRows]()
        self._silent = set[int]()
        self._trying = LoopTask(self._try_silent)

    def watched(self, prefix: str) -> WatchedRows:
        """Return where rows of a further prefix are, which `having` knows from now on."""
        self._with_rows.setdefault(prefix, self.own)
        return self._watched.setdefault(prefix, WatchedRows(self, prefix))

    def number_of(self, tag: int) -> int:
        """Return the partition of a tag."""
        return tag % self.count

    def found(self, number: int) -> None:
        """Note that jobs wait in a partition."""
        self._waiting[number] = None

    def silent(self, number: int) -> None:
        """Note that a partition does not answer."""
        if self.count > 1:
            self._silent.add(number)
            self._trying.start()

    async def stop(self) -> None:
        """End the task that tries partitions which do not answer."""
        await self._trying.stop()

    def emptied(self, number: int) -> None:
        """Note that no job waits in a partition."""
        self._waiting.pop(number, None)

    def taken(self, number: int) -> None:
        """Note that a job was taken from a partition: the others are next."""
        self._waiting.pop(number, None)
        self._waiting[number] = None

    async def in_order(self) -> AsyncIterator[int]:
        """Yield the partitions in which jobs may wait: those where some do, and then those where others may.

        Raises:
            ApiError: 503, the store does not answer.
        """
        if self.count == 1:
            yield 0
            return
        known = list(self._waiting)
        for number in known:
            if number not in self._silent:
                yield number
        await self._read_announced()
        await self._look()
        for number in [each for each in self._waiting if each not in known and each not in self._silent]:
            yield number

    async def having(self, prefix: str) -> Sequence[int]:
        """Return the own partitions that may have rows of a prefix (not `QUEUED`), and those that did not answer.

        Rows that were written since the last look may be left out, unless their worker has died.
        """
        if self.count == 1:
            return [0]
        await self._look()
        return self._with_rows[prefix]

    async def having_notes(self) -> Sequence[int]:
        """Return the own partitions that had rows `NOTED` at the last look, once: most notes are gone in a moment."""
        if self.count == 1:
            return []
        await self._look()
        found, self._with_rows[NOTED] = self._with_rows[NOTED], []
        return found

    async def _read_announced(self) -> None:
        if tag_of_key(_ANNOUNCED) in self._silent:
            self._look_soon()
            return
        try:
            rows = await self._records.range(_ANNOUNCED, after_prefix(_ANNOUNCED), limit=self.count)
        except ApiError:
            self.silent(tag_of_key(_ANNOUNCED))
            self._look_soon()
            return
        for key, _ in rows:
            self.found(int(key.removeprefix(_ANNOUNCED), 16) % self.count)

    async def _read_waiting(self) -> None:
        """Find out where rows wait for which their own workers have no room."""
        if not self._watched or tag_of_key(_WAITING) in self._silent:
            return
        with suppress(ApiError):  # the next look finds them
            for key, _ in await range_in(self._records, 0, _WAITING, after_prefix(_WAITING), limit=_MAX_WAITING):
                number, _, prefix = key.removeprefix(_WAITING).partition("/")
                if prefix in self._watched:
                    self._watched[prefix].found(int(number, 16))

    async def announce_rows(self, prefix: str, numbers: Iterable[int]) -> None:
        """Have other workers look for rows of a prefix in these partitions, at most every ten seconds.

        Raises:
            ApiError: 503, the first partition does not answer.
        """
        now, moment = asyncio.get_running_loop().time(), _ANNOUNCED_SECONDS / 3
        keys = [f"{_WAITING}{number:03x}/{prefix}" for number in sorted(set(numbers))] if self.count > 1 else []
        if new := [key for key in keys if self._announced_at.get(key, -inf) < now - moment]:
            ends = await self._records.now() + _ANNOUNCED_SECONDS
            await self._records.commit([Put(key, b"", ends) for key in new])
            self._announced_at |= dict.fromkeys(new, now)

    def _look_soon(self) -> None:
        self._looked_at = min(self._looked_at, asyncio.get_running_loop().time() - self._look_seconds + _BLIND_SECONDS)

    async def _look(self) -> None:
        """Look at all own partitions, unless that was done a moment ago."""
        async with self._looking:
            now = asyncio.get_running_loop().time()
            if now - self._looked_at < self._look_seconds:
                return
            self._looked_at = now
            try:
                await self._look_at(list(self.own))
                await self._read_waiting()
            except BaseException:
                self._looked_at = -inf
                raise

    async def _look_at(self, own: Sequence[int]) -> None:
        ends = {EXPIRING: f"{EXPIRING}{int(await self._records.now()):08x}"}
        ranges = [(each, ends.get(each) or after_prefix(each)) for each in (QUEUED, *self._with_rows)]
        asked = [number for number in own if number not in self._silent]
        answers = dict(
            zip(asked, await answers_of(filled_in(self._records, each, ranges) for each in asked), strict=True)
        )
        found: dict[str, list[int]] = {prefix: [] for prefix, _ in ranges}
        for number in own:
            answer = answers.get(number)
            if isinstance(answer, ApiError):
                self.silent(number)
            has_rows = answer if isinstance(answer, list) else [prefix != QUEUED for prefix in found]
            for prefix in compress(found, has_rows):
                found[prefix].append(number)
        if self._silent.intersection(own):
            self._look_soon()
        for number in found.pop(QUEUED):
            self.found(number)
        self._with_rows = {**found}

    async def _try_silent(self) -> None:
        """Read of the partitions that do not answer, until all do."""
        while self._silent:
            tried, jobs = list(self._silent), [(QUEUED, after_prefix(QUEUED))]
            answers = await answers_of(filled_in(self._records, each, jobs) for each in tried)
            for number, answer in zip(tried, answers, strict=True):
                if isinstance(answer, ApiError):
                    continue
                self._silent.discard(number)
                self._looked_at = -inf
                if answer[0]:
                    self.found(number)
            if self._silent:
                await asyncio.sleep(_TRY_SECONDS)

    async def announced(self, *numbers: int) -> list[Put]:
        """Return the ops that announce that jobs wait in these partitions, or in all in which some do."""
        if self.count == 1:
            return []
        ends = await self._records.now() + _ANNOUNCED_SECONDS
        return [Put(f"{_ANNOUNCED}{number:03x}", b"", ends) for number in numbers or self._waiting]

    async def share(self, worker: str) -> bool:
        """Find out which partitions the worker serves, given the workers that are alive now.

        Return whether the first partition has answered in a moment. If not, the worker goes on with those that it has.
        """
        if not self._shares:
            return True
        if 0 in self._silent:
            return False
        try:
            async with asyncio.timeout(MOMENT_SECONDS):
                living = frozenset(await living_workers(self._records)) | {worker}
        except (ApiError, TimeoutError):
            self._look_soon()
            return False
        if living != self._living:
            self._living, self._looked_at = living, -inf
            self.own = [number for number in range(self.count) if _first(number, living) == worker]
        return True


class WatchedRows:
    """The partitions in which this process looks for rows that any server may work on.

    They are its own ones that had some at the last look, and those of which it has learned since it looked there.

    Args:
        served: the partitions of this process.
        prefix: that of the rows.
    """

    def __init__(self, served: ServedPartitions, prefix: str) -> None:
        self._served, self._prefix = served, prefix
        self._learned: dict[int, int] = {}
        self._times = count()

    async def read[Row](self, read: Callable[[int], Awaitable[Sequence[Row]]]) -> tuple[list[Row], list[ApiError]]:
        """Read rows in these partitions at the same time; return them, and why some partitions did not answer.

        Args:
            read: returns rows of the partition with a number. It is called again as long as there are some.

        Raises:
            ApiError: 503, the store does not answer.
        """
        having = await self._served.having(self._prefix)
        before, rows, failures = dict(self._learned), list[Row](), list[ApiError]()
        numbers = list(dict.fromkeys([*before, *having]))
        for number, answer in zip(numbers, await answers_of(map(read, numbers)), strict=True):
            if isinstance(answer, ApiError):
                failures.append(answer)
            else:
                rows += answer
            if answer:
                self.found(number)
            elif self._learned.get(number) == before.get(number):
                self._learned.pop(number, None)
        return rows, failures

    async def announce(self, tags: Iterable[int]) -> None:
        """Have other workers look in the partitions of these tags too, since this one has no room for their rows.

        Raises:
            ApiError: 503, the store does not answer.
        """
        await self._served.announce_rows(self._prefix, map(self._served.number_of, tags))

    def found(self, tag: int) -> None:
        """Note that there may be rows in the partition of a tag, or in that of this number."""
        self._learned[self._served.number_of(tag)] = next(self._times)


def _first(number: int, workers: Iterable[str]) -> str:
    return max(workers, key=lambda worker: blake2b(with_tag(worker, number + 1).encode(), digest_size=8).digest())


async def living_workers(records: Records) -> list[str]:
    """Return the workers that have a lease now, 10,000 at most.

    Raises:
        ApiError: 503, the first partition does not answer.
    """
    rows = await range_in(records, 0, "p/", after_prefix("p/"), limit=_MAX_WORKERS)
    return [key[2:] for key, _ in rows if "." not in key]  # the others are leases of one tag


def workers_of(count: int, workers: Iterable[str]) -> list[str | None]:
    """Return which of the living workers serves each of `count` partitions; None if none lives."""
    living = list(workers)
    return [_first(number, living) if living else None for number in range(count)]
