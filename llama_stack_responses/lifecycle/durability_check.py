"""Whether the store keeps what was committed, while this server runs."""

from __future__ import annotations

from collections.abc import Mapping

from ..intervals import Intervals
from ..logs import get_logger
from ..store.records import Configured, Records
from .periodic import Periodic

logger = get_logger(__name__)


class VolatileStore(Exception):  # noqa: N818 - the store is as it is
    """The store may lose responses, and the configuration does not say that it may."""


class DurabilityCheck(Periodic):
    """Asks the store at intervals whether its settings may lose responses. After a failover, another server answers.

    Args:
        records: the store.
        accepted: whether a store that may lose responses is accepted: the setting `volatile` of the store.
        intervals: how often to ask.
    """

    def __init__(self, records: Records, accepted: bool, intervals: Intervals) -> None:
        seconds = intervals.durability_check_seconds
        super().__init__(self.check, "could not ask the store whether it keeps responses", logger, seconds)
        self._records = records
        self._accepted = accepted
        self._losses: Mapping[str, str] | None = {}

    @property
    def volatile(self) -> bool:
        """Whether the store may lose responses, by the last answer."""
        return bool(self._losses)

    @property
    def refused(self) -> bool:
        """Whether it may, and the configuration does not accept that."""
        return self.volatile and not self._accepted

    @property
    def known(self) -> bool:
        """Whether the store says what it keeps."""
        return self._losses is not None

    async def refuse(self) -> None:
        """Check once, before the server starts.

        Raises:
            VolatileStore: this store is not accepted.
            ApiError: 503, the store does not answer.
        """
        await self.check()
        if self.refused:
            raise VolatileStore(f"The response store's server may lose responses: {self._reasons()}")

    async def check(self) -> None:
        """Ask once, and log changes.

        Raises:
            ApiError: 503, the store does not answer.
        """
        before = self._losses
        self._losses = await self._records.losses() if isinstance(self._records, Configured) else {}
        if self._losses == before:
            return
        why = self._reasons()
        if self._losses is None:
            logger.warning("the response store's server does not say whether it keeps responses: permit its user INFO")
        elif not self._losses:
            logger.info("the response store's server keeps responses")
        elif self._accepted:
            logger.warning("the response store's server may lose responses, as 'store.volatile' accepts: %s", why)
        else:
            logger.error("the response store's server may lose responses, this server is not ready: %s", why)

    def _reasons(self) -> str:
        reasons = "; ".join((self._losses or {}).values())
        return reasons if self._accepted else f"{reasons}; or accept it with 'store.volatile: true'"
