"""Waiting for background work of a server."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from llama_stack_responses.jobs.event_log import EventLog

SECONDS: Final = 180.0
"""Far more than a wait for a server takes, even for a lease that expires or for secrets that are compared each minute."""
LOOP_SECONDS: Final = 45.0
"""Far more than a wait within the process takes. It ends before the test does, and so says what was waited for."""


def wait_until(holds: Callable[[], bool], seconds: float = SECONDS, every: float = 0.05) -> None:
    """Wait until the condition holds, checked `every` so many seconds; AssertionError if it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"still not so after {seconds:g} s"
        time.sleep(every)


async def until(holds: Callable[[], bool], seconds: float = LOOP_SECONDS) -> None:
    """Wait until the condition holds, without blocking the event loop."""

    async def found() -> bool:
        return holds()

    await until_found(found, seconds)


async def until_found(holds: Callable[[], Awaitable[object]], seconds: float = LOOP_SECONDS) -> None:
    """Wait until a condition holds that has to be looked up."""
    pause = 0.001
    async with asyncio.timeout(seconds):
        while not await holds():
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.02)


async def turns(count: int) -> None:
    """Let all other tasks of the event loop run this number of times."""
    for _ in range(count):
        await asyncio.sleep(0)


def waiting_readers(event_log: EventLog, response_id: str) -> int:
    """Return how many readers of the response wait for its next event."""
    return sum(reader.waits for reader in event_log.readers._readers.get(response_id, ()))
