"""Comparison of this server's secrets with those of the other servers of its store."""

from __future__ import annotations

from time import monotonic

from ..intervals import Intervals
from ..logs import get_logger
from ..sealing.sealer import Sealer
from ..store.records import Put, Records, after_prefix
from .periodic import Periodic

logger = get_logger(__name__)

_PREFIX = "se/"
_MAX_ROWS = 100
"""Rows that one check reads."""


class SecretCheck(Periodic):
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
        # A store that is not transactional is for one process, and its ranges may read all keys.
        seconds = intervals.secret_check_seconds if records.transactional else intervals.secret_row_seconds / 2
        retry_seconds = intervals.store_retry_seconds
        super().__init__(self.check, "could not compare the secrets of the servers", logger, seconds, retry_seconds)
        self._records = records
        self._sealer = sealer
        self._intervals = intervals
        self._renew_at = 0.0
        self._missing: frozenset[str] = frozenset()

    @property
    def differs(self) -> bool:
        """Whether the last check found a secret that this server does not have."""
        return bool(self._missing)

    async def check(self) -> None:
        """Write this server's row if it is due, compare the rows of the store, and log changes.

        Raises:
            ApiError: 503, the store does not answer.
        """
        await self._sealer.load()
        now = await self._records.now()
        if monotonic() >= self._renew_at:
            await self._renew(now)
        missing = await self._missing_now()
        if missing:
            # Another server may have made the secret of the store since it was read here.
            await self._sealer.reload()
            missing -= set(self._sealer.fingerprints)
        if missing - self._missing:
            logger.error(
                "secrets differ between servers of this store: other servers seal with secret %s, this one has "
                "%s (fingerprints); set the same RESPONSES_SECRET, the setting 'secrets', on all servers of the store",
                ", ".join(sorted(missing)),
                ", ".join(self._sealer.fingerprints),
            )
        elif self._missing and not missing:
            logger.info("secrets no longer differ between servers of this store")
        self._missing = missing

    async def _renew(self, now: float) -> None:
        """Write the row of the secret with which this server seals."""
        lasts = self._intervals.secret_row_seconds
        await self._records.commit([Put(f"{_PREFIX}{self._sealer.fingerprints[0]}", b"", now + lasts)])
        self._renew_at = monotonic() + lasts / 2

    async def _missing_now(self) -> frozenset[str]:
        """Return the secrets with which servers of the store seal, and that this one lacks."""
        rows = await self._records.range(_PREFIX, after_prefix(_PREFIX), limit=_MAX_ROWS)
        in_use = frozenset(key.removeprefix(_PREFIX) for key, _ in rows)
        return in_use - set(self._sealer.fingerprints)
