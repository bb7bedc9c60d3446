"""Health check: whether this server can run and store responses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

from ..concurrency.tasks import LimitedCheck, end_all
from ..core.errors import ApiError
from ..jobs.worker import Worker
from ..store.records import Records, partitions_of, range_in

_TIMEOUT_SECONDS: Final = 2.0
"""Timeout of the check in seconds. The host's own timeout for a provider's check is a second longer."""
_MOMENT_SECONDS: Final = 0.5
"""Time for which nothing but the partition that answered last is asked."""
_ASKED: Final = 8
"""Partitions that are asked then, at random: they are not all on one primary."""


class Health:
    """Checks the store and the worker.

    Args:
        records: the store, which has to answer.
        worker: the worker, which has to run.
    """

    def __init__(self, records: Records, worker: Worker) -> None:
        self._records = records
        self._worker = worker
        self._answered = 0
        self._both = LimitedCheck(self._store_and_worker, _TIMEOUT_SECONDS)

    async def store(self) -> bool:
        """Return True once a partition of the store answers: while one is away, the chains of the others go on.

        Raises:
            ApiError: 503, none of those that were asked does.
        """
        partitions = partitions_of(self._records)
        if partitions == 1:
            await self._ask(0)
            return True
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(_MOMENT_SECONDS):
                await self._ask(self._answered)
            return True
        asked = random.sample(range(partitions), min(partitions, _ASKED))
        tasks = [asyncio.create_task(self._ask(number)) for number in asked]
        try:
            return await _first(tasks)
        finally:
            await end_all(tasks)

    async def _ask(self, number: int) -> None:
        await range_in(self._records, number, "health", "health0", limit=1)
        self._answered = number

    async def worker(self) -> bool | None:
        """Return True, or None if the store does not support a worker.

        Raises:
            ApiError: 503, the worker does not run, or cannot renew its lease.
        """
        await self._worker.check()
        return True if self._records.transactional else None

    async def report(self) -> dict[str, Any]:
        """Return `status`, as the host defines it, and a `message` if the server is not healthy."""
        try:
            await self._both.run()
        except TimeoutError:
            return _unhealthy(f"The response store did not answer within {_TIMEOUT_SECONDS:g} seconds.")
        except ApiError as error:
            return _unhealthy(str(error))
        return {"status": "OK"}

    async def _store_and_worker(self) -> None:
        await self.store()
        await self.worker()


async def _first(tasks: Collection[asyncio.Task[None]]) -> bool:
    """Return True once one of the tasks has ended without an error.

    Raises:
        ApiError: that of the last one, if all failed.
    """
    failure = None
    for each in asyncio.as_completed(tasks):
        try:
            await each
        except ApiError as error:
            failure = error
        else:
            return True
    assert failure
    raise failure


def _unhealthy(message: str) -> dict[str, Any]:
    return {"status": "Error", "message": message}
