"""The event logs of background responses, for readers on any server.

e/<response>/<number>    a row of events, named by the number of its last event
s/<response>             the events are being read or have been read; after the end, its value is the key of the t/ row
t/<second>/<response>    the event log may be deleted from this second on

The e/ and s/ rows are written only while the response's job exists. The commit that deletes the job also writes the t/
row, or leaves no e/ and s/ rows. So every event log is deleted in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Final

from ..core.stream.events import TERMINAL, Event
from ..intervals import DEFAULT
from ..store import codec
from ..store.records import Condition, Delete, Ensure, Notify, Op, Put, Records, VersionIs, after_prefix, committed
from .notifier import Notifier

_ROWS: Final = 64
"""Most rows that one round trip reads."""

_AHEAD: Final = 8
"""Most rows that `follow` reads in one round trip: a stalled reader keeps them in memory."""

_ROW: Final = 65_536
"""Characters past which a row ends; an estimate."""

_HEAD: Final = 256
"""Characters of an event without its delta; an estimate."""


class EventLog:
    """Stores events and serves them to readers.

    Args:
        records: the store.
        notifier: notifies readers of new events.
        poll: poll interval for new events in seconds, on a store without notifications.
        rows: most rows that one round trip reads.
    """

    def __init__(
        self, records: Records, notifier: Notifier, poll: float = DEFAULT.event_poll_seconds, rows: int = _ROWS
    ) -> None:
        self._poll = poll
        self._rows = rows
        self._records = records
        self._notifier = notifier

    def batch(self, response_id: str, events: Sequence[Event]) -> list[Op]:
        """Return the ops that append `events` and notify readers."""
        rows = [Put(_key(response_id, piece[-1]["sequence_number"]), codec.encode(piece)) for piece in _pieces(events)]
        return [*rows, Notify(response_id)] if rows else []

    async def read(self, response_id: str, after: int, rows: int | None = None) -> list[Event]:
        """Return the next stored events after number `after`, of `rows` rows at most; none if there are none yet."""
        start, end = _key(response_id, after + 1), after_prefix(f"e/{response_id}/")
        found = await self._records.range(start, end, limit=rows or self._rows)
        events: list[Event] = []
        for _, record in found:
            # If the answer to a write is lost, the worker writes the batch again with later events appended.
            news = [event for event in codec.decode(record.value) if event["sequence_number"] > after]
            events += news
            after = news[-1]["sequence_number"] if news else after
        return events

    async def read_all(self, response_id: str, after: int) -> list[Event]:
        """Return all stored events after number `after`."""
        events: list[Event] = []
        while more := await self.read(response_id, events[-1]["sequence_number"] if events else after):
            events += more
        return events

    async def has(self, response_id: str) -> bool:
        """Return whether any events of the response are stored."""
        prefix = f"e/{response_id}/"
        return bool(await self._records.range(prefix, after_prefix(prefix), limit=1))

    async def follow(
        self,
        response_id: str,
        after: int,
        silence: float,
        lasts: Callable[[], Awaitable[bool]],
        fence: Callable[[], Awaitable[Condition | None]],
    ) -> AsyncIterator[list[Event]]:
        """Yield the events after number `after` as they are stored, up to the terminal event.

        Yield an empty list after `silence` seconds without an event. The iterator ends early if there are no more
        stored events and `lasts` returns False.

        Args:
            lasts: returns whether the response still runs.
            fence: returns a condition that holds until the response's job changes; None if there is no job.
        """
        await self._announce(response_id, fence)
        loop = asyncio.get_running_loop()
        spoke = loop.time()
        notified, lasting = False, True
        with self._notifier.listen(response_id) as subscription:
            while True:
                if events := await self.read(response_id, after, _AHEAD):
                    after, spoke, notified = events[-1]["sequence_number"], loop.time(), False
                    yield events
                    if events[-1]["type"] in TERMINAL:
                        return
                elif not lasting:
                    return
                elif notified:
                    # A notification without new events may be about the end of the response.
                    notified, lasting = False, await lasts()
                elif (left := spoke + silence - loop.time()) <= 0:
                    spoke = loop.time()
                    yield []
                elif not (notified := await subscription.wait(self._poll, left)):
                    lasting = await lasts()

    async def _announce(self, response_id: str, fence: Callable[[], Awaitable[Condition | None]]) -> None:
        """Record that the events are read, unless the response has ended.

        Events are taken back only before the end, and a row written after the response's deletion would never be
        deleted.
        """
        while condition := await fence():
            if await committed(self._records, [Ensure(f"s/{response_id}", b"")], [condition]):
                return

    def unread(self, response_id: str) -> list[Op]:
        """Return the ops that delete the readers' row, for the commit that deletes the job of a refused response."""
        return [Delete(f"s/{response_id}")]

    def cut_back(self, response_id: str, events: Sequence[Event]) -> tuple[list[Op], list[VersionIs]]:
        """Return the ops that delete the last events, and the condition that no events have been read.

        Args:
            events: the events to delete, as `read_all` returned them.
        """
        ops: list[Op] = [Delete(_key(response_id, event["sequence_number"])) for event in events]
        return ops, [VersionIs(f"s/{response_id}", None)]

    def expire(self, response_id: str, second: float) -> list[Op]:
        """Return the ops that let the event log expire.

        They belong to the commit that writes the last events or deletes the job.

        Args:
            second: expiry time, in seconds since the epoch on the store's clock.
        """
        row = f"t/{int(second):08x}/{response_id}"
        return [Put(row, b""), Put(f"s/{response_id}", row.encode())]

    async def sweep(self, *, limit: int = 10) -> int:
        """Delete at most `limit` expired event logs, and return how many were deleted."""
        now = int(await self._records.now())
        due = await self._records.range("t/", f"t/{now:08x}", limit=limit)
        for row, _ in due:
            await self.forget(row.rpartition("/")[2])
            await self._records.commit([Delete(row)])
        return len(due)

    async def forget(self, response_id: str) -> None:
        """Delete the event log of a response that has ended.

        Rows are deleted from the last to the first, so that a concurrent reader sees no gap.
        """
        prefix, reader = f"e/{response_id}/", f"s/{response_id}"
        while found := await self._records.range(prefix, after_prefix(prefix), limit=self._rows, reverse=True):
            await self._records.commit([Delete(key) for key, _ in found])
        known = (await self._records.get_many([reader])).get(reader)
        await self._records.commit([Delete(reader), *([Delete(known.value.decode())] if known and known.value else [])])


def _pieces(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Split the events into rows of about `_ROW` characters."""
    start, letters = 0, 0
    for index, event in enumerate(events):
        letters += _HEAD + len(event.get("delta", ""))
        if letters >= _ROW:
            yield events[start : index + 1]
            start, letters = index + 1, 0
    if start < len(events):
        yield events[start:]


def _key(response_id: str, number: int) -> str:
    return f"e/{response_id}/{number:08d}"
