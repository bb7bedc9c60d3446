"""Waits for the events, the beginning and the end of a response, whichever server of the store runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from functools import partial

from ..admission import Reservation
from ..core.errors import ApiError
from ..intervals import Intervals
from ..logs import get_logger
from ..store.records import UNAVAILABLE, Condition
from ..stream.events import Event
from .direct_delivery import DirectClient
from .event_log import EventLog
from .event_rows import ReservationRefused
from .notifier import Notifier
from .queue import JobQueue

logger = get_logger(__name__)


class EventFollower:
    """Follows responses until they end, or until this server closes.

    Args:
        notifier: this process's notifier.
        jobs: the queue that all servers share.
        event_log: the event logs that all servers share.
    """

    def __init__(self, notifier: Notifier, jobs: JobQueue, event_log: EventLog, intervals: Intervals) -> None:
        self._notifier = notifier
        self._jobs = jobs
        self._event_log = event_log
        self._intervals = intervals
        self._closing = False

    def close(self) -> None:
        """End all waits because the server closes; clients can continue at another server."""
        self._closing = True
        self._notifier.notify_all()

    async def begun(self, response_id: str) -> None:
        """Wait until the response has begun or ended on any server, or this server closes."""
        with self._notifier.subscribe(response_id) as subscription:
            while not self._closing:
                if await self._event_log.has(response_id) or await self._jobs.find(response_id) is None:
                    return
                await subscription.wait(self._intervals.poll_seconds)

    async def ended(self, response_id: str) -> None:
        """Wait until the response has ended on any server, or this server closes."""
        with self._notifier.subscribe(response_id) as subscription:
            while not self._closing:
                if await self._jobs.find_replicated(response_id) is None:
                    return
                await subscription.wait(self._intervals.poll_seconds)

    async def cancelled(self, response_id: str) -> None:
        """Wait until a cancelled job is gone, for `lease_seconds` at most.

        If the worker that ends the job dies, another one ends it.
        """
        with suppress(TimeoutError), self._notifier.subscribe(response_id) as subscription:
            async with asyncio.timeout(self._intervals.lease_seconds):
                while await self._jobs.find(response_id):
                    await subscription.wait(self._intervals.fast_poll_seconds)

    async def follow(
        self,
        response_id: str,
        after: int,
        silence: float,
        reserve: Callable[[], Reservation] | None = None,
        client: DirectClient | None = None,
    ) -> AsyncGenerator[list[Event]]:
        """Yield the response's events after number `after`, and an empty list after `silence` seconds without one.

        The iterator ends with the terminal event, when the response has ended and its event log is gone, or when this
        server closes. While the store is unavailable, or there is no room for the next events, it retries and yields an
        empty list before each retry.

        Args:
            reserve: creates the reservation for the bytes of events that no other reader has in memory.
            client: may be written to directly. Events that were written to it are not yielded.

        Raises:
            ApiError: 429 or 503, there was no room for `reservation_wait_seconds`.
        """
        lasts, fence = partial(self._lasts, response_id), partial(self._fence, response_id)
        loop = asyncio.get_running_loop()
        read_at = loop.time()
        while not self._closing:
            try:
                stored = self._event_log.follow(response_id, after, silence, lasts, fence, reserve, client)
                async with aclosing(stored) as followed:
                    async for events in followed:
                        yield events
                        after, read_at = events[-1]["sequence_number"] if events else after, loop.time()
                return
            except ReservationRefused as refusal:
                # A client that reads nothing is disconnected after a while.
                read_at = max(read_at, client.written_at) if client else read_at
                if loop.time() - read_at > self._intervals.reservation_wait_seconds:
                    raise refusal.error from refusal
            except ApiError as error:
                if error.status != UNAVAILABLE:
                    raise
            after = max(after, client.last) if client else after
            yield []
            await asyncio.sleep(self._intervals.store_retry_seconds)

    async def _lasts(self, response_id: str) -> bool:
        return not self._closing and await self._jobs.find_replicated(response_id) is not None

    async def _fence(self, response_id: str) -> Condition | None:
        job = await self._jobs.find_replicated(response_id)
        return job.fence if job else None

    async def forget(self, response_id: str) -> None:
        """Delete the event log of a deleted response."""
        try:
            await self._event_log.forget(response_id)
        except ApiError as error:
            # The event log of a response that has ended expires anyway.
            logger.warning("could not delete the event log of a deleted response; it will expire: %s", error)
