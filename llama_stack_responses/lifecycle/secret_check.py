"""Comparison of this server's secrets with those of the other servers of its store."""

from __future__ import annotations

import asyncio
from time import monotonic

from ..concurrency import LoopTask
from ..core.errors import ApiError
from ..intervals import Intervals
from ..logs import get_logger
from ..sealing.sealer import Sealer
from ..store.records import Put, Records, after_prefix

logger = get_logger(__name__)

_PREFIX = "se/"
_MOST = 100
"""Rows that one check reads."""


class SecretCheck:
    """Logs an error if other servers of the store seal with a secret that this server does not have.

    The row `se/<fingerprint>` says that a server seals with this secret; it expires some days after the last server
    that did. Each server writes its own row before it reads those of the others. So of two servers that start at once
    with different secrets, at least one finds the other's row, and both do at their next checks.

    Args:
        records: the store.
        sealer: has this server's secrets.
        intervals: how often to check, and how long a row lasts.
    """

    def __init__(self, records: Records, sealer: Sealer, intervals: Intervals) -> None:
        self._records = records
        self._mine = sealer.fingerprints
        self._intervals = intervals
        self._task = LoopTask(self._run)
        self._renew_at = 0.0
        self._missing: frozenset[str] = frozenset()

    @property
    def differs(self) -> bool:
        """Whether the last check found a secret that this server does not have."""
        return bool(self._missing)

    def start(self) -> None:
        """Start in the running event loop; do nothing if the checks were started in it before."""
        self._task.start()

    async def stop(self) -> None:
        """Stop, and wait until the task of the checks has ended."""
        await self._task.stop()

    async def check(self) -> None:
        """Write this server's row if it is due, compare the rows of the store, and log changes.

        Raises:
            ApiError: 503, the store does not answer.
        """
        if self._mine and monotonic() >= self._renew_at:
            expires_at = await self._records.now() + self._intervals.secret_row_seconds
            await self._records.commit([Put(f"{_PREFIX}{self._mine[0]}", b"", expires_at)])
            self._renew_at = monotonic() + self._intervals.secret_row_seconds / 2
        rows = await self._records.range(_PREFIX, after_prefix(_PREFIX), limit=_MOST)
        missing = frozenset(key.removeprefix(_PREFIX) for key, _ in rows) - set(self._mine)
        if missing - self._missing:
            logger.error(
                "encryption keys differ between servers of this store: other servers encrypt with key %s, this one has "
                "%s (fingerprints); set the same RESPONSES_SECRET, the setting 'secrets', on all servers of the store",
                ", ".join(sorted(missing)),
                ", ".join(self._mine) or "none",
            )
        elif self._missing and not missing:
            logger.warning("all servers of this store encrypt with keys that this server has")
        self._missing = missing

    async def _run(self) -> None:
        intervals = self._intervals
        # Any other store is for one process, and its ranges may read all keys.
        between = intervals.secret_check_seconds if self._records.transactional else intervals.secret_row_seconds / 2
        while True:
            pause = between
            try:
                await self.check()
            except ApiError as error:
                logger.warning("could not compare the secrets of the servers: %s", error)
                pause = intervals.store_retry_seconds
            except Exception:
                logger.exception("could not compare the secrets of the servers")
            await asyncio.sleep(pause)
