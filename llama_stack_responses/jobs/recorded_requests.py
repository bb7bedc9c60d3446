"""The recorded chat requests of a job, stored while it runs: it may end on another server."""

from __future__ import annotations

from typing import Final

from ..generation.timeline import Timeline
from ..store.layout import chat_request, chat_requests
from ..store.records import Delete, Op, Put, Records

_MAX_REQUESTS: Final = 1000
"""More chat requests than are recorded of one response."""


class RecordedRequests:
    """Writes the chat requests of one job with its events, so that they are fenced as these are.

    Args:
        records: the store.
        response_id: the id of the job's response.

    Attributes:
        timeline: records the requests of this try; None before it begins.
    """

    def __init__(self, records: Records, response_id: str) -> None:
        self._records = records
        self._response_id = response_id
        self._waiting: dict[str, bytes] = {}
        self.timeline: Timeline | None = None

    async def stored(self) -> int:
        """Return how many requests are stored."""
        last = await self._records.range(*chat_requests(self._response_id), limit=1, reverse=True)
        return int(last[0][0].rpartition("/")[2]) + 1 if last else 0

    def ops(self) -> list[Op]:
        """Return the ops that store the requests that are not stored yet, also those of commits that failed."""
        first, requests = self.timeline.take_requests() if self.timeline else (0, [])
        self._waiting |= {chat_request(self._response_id, first + number): each for number, each in enumerate(requests)}
        return [Put(key, request) for key, request in self._waiting.items()]

    def committed(self) -> None:
        """Note that the last ops are stored."""
        self._waiting = {}

    async def delete_ops(self) -> list[Op]:
        """Return the ops that delete all of them, for the commit that deletes the job of a deleted response."""
        return [
            Delete(key) for key, _ in await self._records.range(*chat_requests(self._response_id), limit=_MAX_REQUESTS)
        ]
