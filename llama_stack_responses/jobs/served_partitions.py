"""Which partitions of the store a worker serves, and in which order it looks for jobs in them.

One living worker serves a partition: it looks there for jobs, for what dead workers hold, and for event logs that have
expired. It is the worker whose name, hashed with the number of the partition, is the greatest (rendezvous hashing;
Thaler and Ravishankar, 1998). So a worker that starts or ends changes only its own partitions. A worker that has no
room for the jobs of a partition writes a row for it, and workers that have room look there too:

    qh/<partition>    jobs wait in this partition; it expires
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from ..core.errors import ApiError
from ..store.layout import with_tag
from ..store.records import Put, Records, after_prefix, partitions_of, range_in

_ANNOUNCED: Final = "qh/"
_ANNOUNCED_SECONDS: Final = 30.0
_QUEUE: Final = "q/"


class ServedPartitions:
    """The partitions of one process.

    Args:
        records: the store.
        look_seconds: minimum interval between two searches of all own partitions for jobs; None if this process serves
            all partitions, and searches them whenever it is asked for a job.

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
        self._looked_at = float("-inf")

    def number_of(self, tag: int) -> int:
        """Return the partition of a tag."""
        return tag % self.count

    def found(self, number: int) -> None:
        """Note that jobs wait in a partition."""
        self._waiting[number] = None

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
            yield number
        await self._look()
        for number in [each for each in self._waiting if each not in known]:
            yield number

    async def _look(self) -> None:
        with suppress(ApiError):
            for key, _ in await self._records.range(_ANNOUNCED, after_prefix(_ANNOUNCED), limit=self.count):
                self.found(int(key.removeprefix(_ANNOUNCED), 16) % self.count)
        now = time.monotonic()
        if now - self._looked_at < self._look_seconds:
            return
        self._looked_at = now
        calls = (range_in(self._records, each, _QUEUE, after_prefix(_QUEUE), limit=1) for each in self.own)
        for number, found in zip(self.own, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(found, BaseException):
                if not isinstance(found, ApiError):
                    raise found
            elif found:
                self.found(number)

    async def announced(self) -> list[Put]:
        """Return the ops that announce the partitions in which jobs wait."""
        ends = await self._records.now() + _ANNOUNCED_SECONDS
        return [Put(f"{_ANNOUNCED}{number:03x}", b"", ends) for number in self._waiting]

    async def share(self, worker: str) -> None:
        """Find out which partitions the worker serves, given the workers that are alive now."""
        if not self._shares:
            return
        try:
            rows = await range_in(self._records, 0, "p/", after_prefix("p/"), limit=10_000)
        except ApiError:
            return  # it goes on with those that it has
        living = frozenset(key[2:] for key, _ in rows if "." not in key) | {worker}
        if living != self._living:
            self._living = living
            self.own = [number for number in range(self.count) if _first(number, living) == worker]


def _first(number: int, workers: Iterable[str]) -> str:
    return max(workers, key=lambda worker: blake2b(with_tag(worker, number + 1).encode(), digest_size=8).digest())


def workers_of(count: int, workers: Iterable[str]) -> list[str | None]:
    """Return which of the living workers serves each of `count` partitions; None if none lives."""
    living = list(workers)
    return [_first(number, living) if living else None for number in range(count)]
