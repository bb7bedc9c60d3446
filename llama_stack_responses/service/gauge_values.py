"""The values of the gauges of this server."""

from __future__ import annotations

from ..admission import Admission, InFlightCounter
from ..jobs.background import BackgroundJobs
from ..lifecycle.durability_check import DurabilityCheck
from ..lifecycle.integrity_check import IntegrityCheck
from ..store.records import Limited, Records
from ..store.sweep_guard import held_back
from ..telemetry.gauges import StoreState
from .foreground_responses import ForegroundResponses


class GaugeValues:
    """Counts what runs, waits and is open.

    Args:
        records: the store.
        durability: knows whether the store may lose responses.
        integrity: knows whether the store's file is damaged.
        jobs: the detached responses.
        foreground: the foreground responses.
        streams: counts the open event streams and WebSockets.
        sockets: counts the WebSockets among them.
    """

    def __init__(
        self,
        records: Records,
        durability: DurabilityCheck,
        integrity: IntegrityCheck,
        jobs: BackgroundJobs,
        foreground: ForegroundResponses,
        streams: Admission,
        sockets: InFlightCounter,
    ) -> None:
        self._records = records
        self._durability = durability
        self._integrity = integrity
        self._jobs = jobs
        self._foreground = foreground
        self._streams = streams
        self._sockets = sockets

    def counts(self) -> dict[tuple[str, str], int]:
        """Return what this process counts; callable in any thread."""
        sockets = self._sockets.value
        return {
            ("responses.running", "foreground"): self._foreground.running,
            ("responses.running", "detached"): self._jobs.worker.running,
            ("connections.open", "websocket"): sockets,
            ("connections.open", "stream"): self._streams.held - sockets,
        }

    async def store(self) -> StoreState:
        """Return what the store counts."""
        backlog = await self._jobs.backlog()
        now = [each for kind, each in backlog.items() if not kind.can_wait]
        deferred = {kind.name.lower(): each for kind, each in backlog.items() if kind.can_wait}
        length, age = sum(each.length for each in now), max(each.age for each in now)
        free = await self._records.free() if isinstance(self._records, Limited) else None
        losing, damaged = int(self._durability.volatile), int(self._integrity.damaged)
        held = await held_back(self._records)
        return StoreState(length, age, deferred, await self._records.size(), free, losing, damaged, held)
