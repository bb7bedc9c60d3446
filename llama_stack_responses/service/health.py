"""Health check: whether this server can run and store responses."""

from __future__ import annotations

from typing import Any, Final

from ..concurrency.tasks import LimitedCheck
from ..core.errors import ApiError
from ..jobs.worker import Worker
from ..store.records import Records

_TIMEOUT_SECONDS: Final = 2.0
"""Timeout of the check in seconds. The host's own timeout for a provider's check is a second longer."""


class Health:
    """Checks the store and the worker.

    Args:
        records: the store, which has to answer.
        worker: the worker, which has to run.
    """

    def __init__(self, records: Records, worker: Worker) -> None:
        self._records = records
        self._worker = worker
        self._both = LimitedCheck(self._store_and_worker, _TIMEOUT_SECONDS)

    async def store(self) -> bool:
        """Return True.

        Raises:
            ApiError: 503, the store does not answer.
        """
        await self._records.get_many(["health"])
        return True

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


def _unhealthy(message: str) -> dict[str, Any]:
    return {"status": "Error", "message": message}
