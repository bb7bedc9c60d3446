"""How long the certificates are still valid, while this server runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from ..intervals import Intervals
from ..logs import get_logger
from .certificates import End
from .periodic import Periodic

logger = get_logger(__name__)

_DAY_SECONDS: Final = 86_400.0


class CertificateCheck(Periodic):
    """Reads certificates at intervals, and logs once a day which of them end soon.

    Args:
        certificates: by name, what reads when a certificate ends.
        warning_days: days before its end from which on a certificate is logged.
        intervals: how often to read them.
        clock: returns seconds since the epoch.
    """

    def __init__(
        self,
        certificates: Mapping[str, End],
        warning_days: float,
        intervals: Intervals,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(self.check, "could not check the certificates", logger, intervals.certificate_check_seconds)
        self._certificates = certificates
        self._warning_days = warning_days
        self._clock = clock
        self._ends: dict[str, float] = {}
        self._logged: dict[str, object] = {}

    def remaining(self) -> dict[str, float]:
        """Return by name the seconds until each certificate ends, negative afterwards; callable in any thread."""
        now = self._clock()
        return {name: end - now for name, end in list(self._ends.items())}

    async def check(self) -> None:
        """Read all of them once, and log what is new."""
        for name, end in self._certificates.items():
            try:
                self._ends[name] = await end()
            except (OSError, ValueError, EOFError) as error:
                reason = type(error).__name__
                if self._is_new(name, reason):
                    logger.warning("could not read a certificate: %s: %s", name, reason)
            else:
                self._log(name, int(self.remaining()[name] // _DAY_SECONDS))

    def _log(self, name: str, days: int) -> None:
        """Log how many whole days a certificate is still valid, if there are few."""
        if not self._is_new(name, days):
            return
        if days < 0:
            logger.error("a certificate has ended: %s", name)
        elif days < self._warning_days:
            logger.warning("a certificate ends soon: %s, in %d days", name, days)

    def _is_new(self, name: str, found: object) -> bool:
        """Note what was found; return whether it differs from what was found before."""
        before = self._logged.get(name)
        self._logged[name] = found
        return found != before
