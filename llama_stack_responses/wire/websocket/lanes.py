"""The requests of a connection: sequential within a lane, concurrent across lanes."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from ...core.errors import ApiError, bad_request
from ...core.types import Json

_NAME: Final = re.compile("[A-Za-z0-9_.-]{1,256}")


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Limits of the requests of a connection.

    Attributes:
        concurrency: maximum requests that are processed at the same time.
        waiting: maximum requests that wait in addition.
        waiting_bytes: maximum size of all these requests.
        names: maximum different lane names over the lifetime of the connection.
    """

    concurrency: int
    waiting: int
    waiting_bytes: int
    names: int


@dataclass(frozen=True, slots=True)
class _Request:
    event: Json
    size: int
    done: Callable[[], None]


class Lanes:
    """Queues requests and processes those of each lane in order.

    Args:
        limits: limits of the requests.
        work: processes a request of a lane; it must not raise.
    """

    def __init__(self, limits: LaneLimits, work: Callable[[str | None, Json], Awaitable[None]]) -> None:
        self._limits = limits
        self._work = work
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._names: set[str] = set()
        self._queues: dict[str | None, deque[_Request]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self._bytes = 0

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._tasks)

    def put(self, lane: str | None, event: Json, size: int, done: Callable[[], None]) -> None:
        """Queue a request of `size` bytes; the lane None has no name.

        Args:
            done: called when the request has been processed or dropped.

        Raises:
            ApiError: 429 if there are too many requests; 400 if there are too many lane names.
        """
        self._check(lane, size)
        self._count += 1
        self._bytes += size
        if lane in self._queues:
            self._queues[lane].append(_Request(event, size, done))
            return
        self._queues[lane] = deque([_Request(event, size, done)])
        task = asyncio.create_task(self._drain(lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check(self, lane: str | None, size: int) -> None:
        limits = self._limits
        if self._count >= limits.concurrency + limits.waiting or self._bytes + size > limits.waiting_bytes:
            message = "Too many requests wait on this connection. Send the next one when a response has ended."
            raise ApiError(429, message, code="rate_limit_exceeded")
        if lane is None or lane in self._names:
            return
        if len(self._names) >= limits.names:
            message = f"A connection has at most {limits.names} named streams. Reuse one, or open another connection."
            raise bad_request(message, "stream_id", "websocket_stream_limit_reached")
        self._names.add(lane)

    async def _drain(self, lane: str | None) -> None:
        queue = self._queues[lane]
        try:
            while queue:
                async with self._slots:
                    request = queue.popleft()
                    try:
                        await self._work(lane, request.event)
                    finally:
                        self._forget(request)
        finally:
            del self._queues[lane]

    def _forget(self, request: _Request) -> None:
        self._count -= 1
        self._bytes -= request.size
        request.done()

    async def finish(self) -> None:
        """Wait until all requests are done."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def abandon(self) -> None:
        """Cancel all running requests and drop those that wait."""
        for task in self._tasks:
            task.cancel()
        for queue in self._queues.values():
            while queue:
                self._forget(queue.popleft())


def lane_of(event: Json) -> str | None:
    """Return the lane of a request, or None for the lane without a name.

    Raises:
        ApiError: 400 `invalid_stream_id`.
    """
    lane = event.get("stream_id")
    if lane is None:
        return None
    if not isinstance(lane, str) or not _NAME.fullmatch(lane):
        message = "Invalid 'stream_id': expected 1 to 256 ASCII letters, digits, underscores, hyphens or periods."
        raise bad_request(message, "stream_id", "invalid_stream_id")
    return lane
