"""The delay until a reader on another server sees an event, and the store calls of waiting: notified and polling.

    .venv/bin/python -m benchmarks.notifications                       # about two minutes
    .venv/bin/python -m benchmarks.notifications --events 50 --seconds 2

The event logs and workers of two processes run on an SQLite file, a real Valkey and a real PostgreSQL: once with a
subscription to the store's notifications, and once without, as on a store that has none. The table goes to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from llama_stack_responses.jobs.event_log import EventLog
from llama_stack_responses.jobs.notification_listener import NotificationListener
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.store.records import Condition, Records, VersionIs
from tests.contract.backends import BACKENDS, BackendLocation, Clock
from tests.support.database import DatabaseServer
from tests.support.records import WatchedRecords
from tests.support.stores import SERVERS
from tests.unit.jobs.harness import ProcessHarness

type Json = dict[str, Any]

READERS: Final = 32
SILENCE: Final = 600.0


class Counted(WatchedRecords):
    """Records that count calls.

    Args:
        woken: whether notifications are available.
    """

    def __init__(self, records: Records, *, woken: bool) -> None:
        self.calls = 0

        async def count(_: str) -> None:
            self.calls += 1

        super().__init__(records, before=count)
        self._woken = woken

    def pubsub(self) -> Any:
        return super().pubsub() if self._woken else None


@dataclass(frozen=True)
class Waited:
    """The result for one store.

    Attributes:
        took: seconds from before the write of an event until the other process's reader had it.
        reader: store calls per second of a waiting reader.
        server: store calls per second of an idle server.
    """

    took: list[float]
    reader: float
    server: float


async def lasts() -> bool:
    """Return True: the response is still running."""
    return True


async def fence() -> Condition:
    """Return a condition that always holds."""
    return VersionIs("j/another", None)


@asynccontextmanager
async def listening(records: Records) -> AsyncIterator[tuple[EventLog, Notifier]]:
    """Open an event log with its own notifier and listener, as in another process."""
    notifier = Notifier()
    listening = asyncio.create_task(NotificationListener(records, notifier).run())
    try:
        yield EventLog(records, notifier), notifier
    finally:
        listening.cancel()
        await asyncio.wait([listening])


async def latency(here: Records, there: Records, events: int) -> list[float]:
    """Write events at random times, one at a time, and read them in the other process."""
    chance, took = random.Random(1), []  # noqa: S311 - no secret
    writer = EventLog(here, Notifier())
    async with listening(there) as (event_log, _):
        stream = event_log.follow("r", -1, SILENCE, lasts, fence)
        for number in range(events):
            kind = "response.completed" if number == events - 1 else "response.output_text.delta"
            reading = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(chance.uniform(0.3, 0.6))
            begun = time.perf_counter()
            await here.commit(await writer.batch("r", [{"type": kind, "sequence_number": number}]))
            await reading
            took.append(time.perf_counter() - begun)
    return took


async def idle_readers(records: Counted, seconds: float) -> float:
    """Return the store calls per second of each of several readers of responses without events."""
    async with listening(records) as (event_log, _):
        streams = [event_log.follow(f"idle{number}", -1, SILENCE, lasts, fence) for number in range(READERS)]
        reading = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(2)  # until all have subscribed
        before = records.calls
        await asyncio.sleep(seconds)
        calls = records.calls - before
        for each in reading:
            each.cancel()
        await asyncio.wait(reading)
    return calls / seconds / READERS


async def idle_server(records: Counted, seconds: float) -> float:
    """Return the store calls per second of idle workers."""
    background = ProcessHarness(records).background_jobs()
    background.start()
    await asyncio.sleep(2)
    before = records.calls
    await asyncio.sleep(seconds)
    calls = records.calls - before
    await background.worker.stop()
    return calls / seconds


async def measure(kind: str, place: BackendLocation, events: int, seconds: float, *, woken: bool) -> Waited:
    """Measure one store."""
    sys.stderr.write(f"{kind}, {'woken' if woken else 'looking'}\n")
    [backend] = [each for each in BACKENDS if each.name == kind]
    place = place.fresh()
    here, there = (Counted(backend.open(place, Clock(time.time())), woken=woken) for _ in range(2))
    took = await latency(here, there, events)
    found = Waited(took, await idle_readers(there, seconds), await idle_server(there, seconds))
    await here.close()
    await there.close()
    return found


def table(found: Mapping[tuple[str, bool], Waited]) -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| store | | an event is read after: median | 95th percentile | calls a second of a reader that waits "
        "| of a server with nothing to do |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for (kind, woken), waited in found.items():
        p95 = quantiles(waited.took, n=20, method="inclusive")[-1]
        lines.append(
            f"| {kind} | {'woken' if woken else 'looking'} | {median(waited.took) * 1e3:.1f} ms | {p95 * 1e3:.1f} ms "
            f"| {waited.reader:.2f} | {waited.server:.2f} |"
        )
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100, help="events that are written and read")
    parser.add_argument("--seconds", type=float, default=10.0, help="for which nothing happens")
    options = parser.parse_args()
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        servers: dict[str, DatabaseServer] = {kind: make(folder / kind) for kind, make in SERVERS.items()}
        for server in servers.values():
            running.enter_context(server)
        place = BackendLocation(folder, lambda kind: servers[kind].url)
        found = {
            (kind, woken): asyncio.run(measure(kind, place, options.events, options.seconds, woken=woken))
            for kind in ("sqlite", *servers)
            for woken in (False, True)
        }
    sys.stdout.write("\n".join(table(found)) + "\n")


if __name__ == "__main__":
    main()
