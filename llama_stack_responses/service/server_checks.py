"""What a server checks at intervals, and what `/v1/ready` and the gauges say of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ..config import ResponsesConfig
from ..config.stores import accepts_losses
from ..core.errors import ApiError
from ..generation.dependencies import Dependencies
from ..intervals import Intervals
from ..lifecycle.certificates import CertificateCheck, watched
from ..lifecycle.clock_check import ClockCheck
from ..lifecycle.durability_check import DurabilityCheck
from ..lifecycle.garbage import OldGarbage, OldObjects
from ..lifecycle.integrity_check import IntegrityCheck
from ..lifecycle.memory_return import MemoryReturn
from ..lifecycle.periodic import Periodic
from ..lifecycle.provider_check import ProviderCheck
from ..lifecycle.secret_check import SecretCheck
from ..lifecycle.sweeper import ConversationSweeper, ResponseSweeper, Sweeper
from ..sealing.sealer import Sealer
from ..store.archive import Archive
from ..store.clock import StoreClock
from ..store.records import Records
from ..store.retention import Retention
from ..store.sweep_guard import SweepGuard, conversation_guard


class ServerChecks:
    """The periodic checks of a server.

    Args:
        running: returns the number of responses that run in this process; the others are the server's parts.

    Attributes:
        providers: whether the model servers answer.
        certificates: when certificates end.
        durability: whether the store may lose responses.
        integrity: whether the store's file is damaged.
        periodic: all of them, and the sweepers.
    """

    def __init__(
        self,
        config: ResponsesConfig,
        records: Records,
        archive: Archive,
        clock: StoreClock,
        sealer: Sealer,
        dependencies: Dependencies,
        intervals: Intervals,
        running: Callable[[], int],
    ) -> None:
        self._clock = clock
        self._secret = SecretCheck(records, sealer, intervals)
        self._sweepers: Final = _sweepers(config, records, archive, clock)
        self.providers = ProviderCheck(dependencies.inference, config.ready_providers, intervals)
        places = watched(config.watched_certificates, config.store)
        self.certificates = CertificateCheck(places, config.certificate_warning_days, intervals)
        self.durability = DurabilityCheck(records, accepts_losses(config.store), intervals)
        self.integrity = IntegrityCheck(records, intervals)
        objects = OldObjects(running)
        self.periodic: list[Periodic] = [
            *self._sweepers,
            self._secret,
            ClockCheck(clock, intervals),
            OldGarbage(intervals.memory_return_seconds, objects),
            MemoryReturn(intervals.memory_return_seconds, objects),
            self.durability,
            self.integrity,
            self.providers,
            self.certificates,
        ]

    async def prepare(self) -> None:
        """Read the store's clock and settings before the first request. The store need not answer yet.

        Raises:
            VolatileStore: it may lose responses, and the configuration does not accept that.
        """
        with suppress(ApiError):
            await self._clock.read()
            await self.durability.refuse()

    @property
    def next_sweep(self) -> float | None:
        """The seconds until this server deletes what has expired; None while it does, and before the first time."""
        known = [each.seconds_left for each in self._sweepers]
        return min((seconds for seconds in known if seconds is not None), default=None)

    def notes(self) -> dict[str, str]:
        """Return what `/v1/ready` says beside its status, by name."""
        durability = self.durability
        notes = {
            "secrets": "different" if self._secret.differs else "",
            "sweep": "held" if any(each.held for each in self._sweepers) else "",
            "durability": "volatile" if durability.volatile else "" if durability.known else "unknown",
            "model_servers": self._ill_model_servers(),
        }
        return {name: note for name, note in notes.items() if note}

    def _ill_model_servers(self) -> str:
        ill, all_of_them = self.providers.unavailable, len(self.providers.up())
        # If all are, the part `model_server` says so.
        return f"{ill} of {all_of_them} unavailable" if 0 < ill < all_of_them else ""

    def faults(self) -> dict[str, str]:
        """Return why the server is not ready, by name."""
        faults = {
            "clock": "wrong" if self._clock.is_wrong else "",
            "durability": "volatile" if self.durability.refused else "",
            "integrity": "damaged" if self.integrity.damaged else "",
        }
        return {name: fault for name, fault in faults.items() if fault}


def _sweepers(config: ResponsesConfig, records: Records, archive: Archive, clock: StoreClock) -> list[Sweeper]:
    guard = SweepGuard(records, archive.count, config.max_swept_share)
    sweepers: list[Sweeper] = [ResponseSweeper(archive, clock, guard, config.sweep_seconds)]
    if seconds := config.conversation_retention_seconds:
        guard = conversation_guard(records, archive.conversations, config.max_swept_share)
        rule = Retention(seconds, clock)
        sweepers.append(ConversationSweeper(archive.conversations, rule, clock, guard, config.sweep_seconds))
    return sweepers
