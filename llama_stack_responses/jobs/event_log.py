"""The event logs of background responses, for readers on any server.

e/<response>/<number>    a row of events, named by the number of its last event
s/<response>             the events are being read or have been read; after the end, its value is the key of the t/ row
t/<second>/<response>    the event log may be deleted from this second on

The e/ and s/ rows are written only while the response's job exists. The commit that deletes the job also writes the t/
row, or leaves no e/ and s/ rows. So every event log is deleted in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from ..admission import Reservation
from ..concurrency.offloading import INLINE_BYTES, in_thread, list_yielding_lock
from ..core.ids import tag_of
from ..core.json_values import is_large
from ..generation.shared_events import SharedEvents
from ..intervals import DEFAULT
from ..store import codec
from ..store.decoder import Decoder
from ..store.records import (
    Condition,
    Delete,
    Ensure,
    Notify,
    Op,
    Put,
    Records,
    VersionIs,
    after_prefix,
    committed,
    range_in,
    read_replicated,
)
from ..stream.delta_forms import DeltaRun
from ..stream.events import TERMINAL, Event
from .direct_delivery import DirectClient, Reader, Readers
from .event_rows import EventRows, ReservationRefused, Row
from .notifier import Notifier

_ROWS_PER_READ: Final = 64
"""Maximum number of rows that one round trip reads."""

_STEP_BYTES: Final = 2**20
"""Bytes with which the rows of one round trip end."""

_ROWS_AHEAD: Final = 8
_AHEAD_BYTES: Final = 2**17
"""Maximum number of rows that `follow` reads in one round trip, and the bytes with which they end: a stalled reader
keeps them in memory."""

_DELTA_BYTES: Final = 256
"""Bytes of a delta without its text: more than the names of its fields and an id, as `is_large` counts."""

_ROW_BYTES: Final = 65_536
"""Bytes of JSON that a row has at most, unless it is one event."""


class EventLog:
    """Stores events and serves them to readers.

    Args:
        records: the store.
        notifier: notifies readers of new events.
        poll: poll interval for new events in seconds, on a store without notifications.
        rows: maximum number of rows that one round trip reads.
        decoder: decodes rows.

    Attributes:
        readers: the readers of this process.
    """

    def __init__(
        self,
        records: Records,
        notifier: Notifier,
        poll: float = DEFAULT.event_poll_seconds,
        rows: int = _ROWS_PER_READ,
        decoder: Decoder | None = None,
    ) -> None:
        self._decoder = decoder or Decoder()
        self._event_rows = EventRows()
        self.readers = Readers()
        self._reading: dict[tuple[str, int], asyncio.Future[Sequence[Row]]] = {}
        self._poll = poll
        self._rows = rows
        self._records = records
        self._notifier = notifier

    async def batch(self, response_id: str, events: Sequence[Event]) -> list[Op]:
        """Return the ops that append `events` and notify readers."""
        return await self.shared_batch(response_id, SharedEvents(events)) if events else []

    async def shared_batch(self, response_id: str, events: SharedEvents) -> list[Op]:
        """Return the ops of `batch` for events that readers in this process may get too."""
        if not are_large(events.run or events.events):
            return self.small_batch(response_id, events)
        rows = _rows(response_id, events.events)
        return [*await in_thread(list_yielding_lock, rows), Notify(response_id)]

    def small_batch(self, response_id: str, events: SharedEvents) -> list[Op]:
        """Return the ops of `batch` for events that are not large."""
        return [*_small_rows(response_id, events), Notify(response_id)]

    def announce(self, response_id: str, events: SharedEvents | None = None) -> None:
        """Notify the readers in this process of `events`, which are stored now."""
        passed_on = self.readers.pass_on(response_id, events) if events else frozenset()
        self._notifier.notify(response_id, passed_on)

    async def read(self, response_id: str, after: int, rows: int | None = None) -> list[Event]:
        """Return the next stored events after number `after`, of `rows` rows at most; none if there are none yet."""
        events: list[Event] = []
        for row, _ in await self._read(response_id, after, rows or self._rows, _STEP_BYTES):
            # See `_stored`.
            news = [event for event in row if event["sequence_number"] > after]
            events += news
            after = news[-1]["sequence_number"] if news else after
        return events

    async def _read(self, response_id: str, after: int, rows: int, max_bytes: int) -> list[tuple[list[Event], int]]:
        """Return the next rows with events after number `after`, until they reach `max_bytes`; each with its size."""
        start, end = _key(response_id, after + 1), after_prefix(f"e/{response_id}/")
        _, batches = await self._decoder.read_until(
            partial(self._records.range, start, end, limit=rows, max_bytes=max_bytes),
            lambda batches: [record.value for _, record in batches],
            max_bytes,
        )
        return batches

    async def pages(self, response_id: str, after: int) -> AsyncIterator[list[Event]]:
        """Yield all stored events after number `after`, a bounded number of bytes at a time."""
        while events := await self.read(response_id, after):
            after = events[-1]["sequence_number"]
            yield events

    async def read_all(self, response_id: str, after: int) -> list[Event]:
        """Return all stored events after number `after`."""
        return [event async for events in self.pages(response_id, after) for event in events]

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
        reserve: Callable[[], Reservation] | None = None,
        client: DirectClient | None = None,
    ) -> AsyncGenerator[list[Event]]:
        """Yield the events after number `after` as they are stored, up to the terminal event.

        Yield an empty list after `silence` seconds without an event. The iterator ends early if there are no more
        stored events and `lasts` returns False.

        Args:
            lasts: returns whether the response still runs.
            fence: returns a condition that holds until the response's job changes; None if there is no job.
            reserve: creates the reservation for the bytes of a row that no other reader has in memory.
            client: may be written to directly. Events that were written to it are not yielded.

        Raises:
            ReservationRefused: the reservation for the next row is refused.
        """
        await self._record_reader(response_id, fence)
        loop = asyncio.get_running_loop()
        notified, lasting = False, True
        with (
            self._notifier.subscribe(response_id) as subscription,
            self.readers.joined(response_id, Reader(subscription, after, client)) as reader,
        ):
            while True:
                async with aclosing(self._stored(response_id, reader.after, reserve)) as stored:
                    async for events in stored:
                        reader.mark_seen(events[-1]["sequence_number"])
                        notified = False
                        yield events
                        if events[-1]["type"] in TERMINAL:
                            return
                events = []  # nothing is held while waiting
                if not lasting:
                    return
                if notified:
                    # A notification without new events may be about the end of the response.
                    notified, lasting = False, await lasts()
                elif reader.seen_at + silence <= loop.time():
                    reader.seen_at = loop.time()
                    yield []
                elif not (notified := await reader.wait(self._poll, silence)):
                    lasting = await lasts()

    async def _stored(
        self, response_id: str, after: int, reserve: Callable[[], Reservation] | None
    ) -> AsyncGenerator[list[Event]]:
        """Yield the events after number `after` that are stored now, some rows at a time, which are held meanwhile.

        Raises:
            ReservationRefused: there is no room for the next row.
        """
        while rows := await self._rows_after(response_id, after, reserve):
            events: list[Event] = []
            for row in rows:
                # If the answer to a write is lost, the worker writes the batch again with later events appended.
                events += row.after(after)
                after = max(after, row.last)
            yield events
            del rows, row, events

    async def _rows_after(self, response_id: str, after: int, reserve: Callable[[], Reservation] | None) -> list[Row]:
        """Return the next rows with events after number `after`: as many as there is room for.

        Raises:
            ReservationRefused: there is no room for the first of them.
        """
        if held := self._event_rows.find(response_id, after + 1):
            return [held]
        key = (response_id, after)
        if reading := self._reading.get(key):
            # Another reader reads the same rows. If it finds none, a row may have been written since its call.
            if rows := await asyncio.shield(reading):
                return list(rows)
            return await self._read_rows(response_id, after, reserve)
        self._reading[key] = reading = asyncio.get_running_loop().create_future()
        new_rows: Sequence[Row] = ()
        try:
            new_rows = await self._read_rows(response_id, after, reserve)
        finally:
            del self._reading[key]
            reading.set_result(new_rows)
        return list(new_rows)

    async def _read_rows(self, response_id: str, after: int, reserve: Callable[[], Reservation] | None) -> list[Row]:
        rows: list[Row] = []
        stored = partial(self._read, response_id, after, _ROWS_AHEAD, _AHEAD_BYTES)
        read = await read_replicated(self._records, tag_of(response_id), stored, bool)
        for events, size in read:
            try:
                rows.append(self._event_rows.get_or_add(response_id, events, size, reserve))
            except ReservationRefused:
                if not rows:
                    raise
                break
        return rows

    async def _record_reader(self, response_id: str, fence: Callable[[], Awaitable[Condition | None]]) -> None:
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

    async def sweep(self, number: int = 0, *, limit: int = 10) -> int:
        """Delete at most `limit` expired event logs of a partition, and return how many were deleted."""
        now = int(await self._records.now())
        due = await range_in(self._records, number, "t/", f"t/{now:08x}", limit=limit)
        for row, _ in due:
            await self.forget(row.rpartition("/")[2])
            await self._records.commit([Delete(row)])
        return len(due)

    async def forget(self, response_id: str) -> None:
        """Delete the event log of a response that has ended.

        Rows are deleted from the last to the first, so that a concurrent reader sees no gap.
        """
        prefix, reader = f"e/{response_id}/", f"s/{response_id}"
        end = after_prefix(prefix)
        while rows := await self._records.range(prefix, end, limit=self._rows, reverse=True, max_bytes=_STEP_BYTES):
            await self._records.commit([Delete(key) for key, _ in rows])
        known = (await self._records.get_many([reader])).get(reader)
        await self._records.commit([Delete(reader), *([Delete(known.value.decode())] if known and known.value else [])])


def are_large(events: Sequence[Event] | DeltaRun) -> bool:
    """Return whether events are too large to be encoded in the event loop. Most batches are deltas of text only."""
    if isinstance(events, DeltaRun):
        return _DELTA_BYTES * len(events.texts) + sum(map(len, events.texts)) > INLINE_BYTES
    size = 0
    for event in events:
        text = event.get("delta")
        if not isinstance(text, str) or event.get("logprobs"):
            return is_large(events, INLINE_BYTES)
        size += _DELTA_BYTES + len(text)
    return size > INLINE_BYTES


def _small_rows(response_id: str, events: SharedEvents) -> list[Put]:
    """Return the rows of events that are not large: mostly one row."""
    texts = events.json
    if sum(map(len, texts)) > _ROW_BYTES:  # escapes take up to six bytes for each character
        return list(_rows(response_id, events.events))
    return [_row(response_id, events.last, texts, lenient=events.lenient)]


def _rows(response_id: str, events: Sequence[Event]) -> Iterator[Put]:
    """Return the rows of these events. Events are encoded one by one, since each may be large."""
    texts: list[bytes | bytearray] = []
    size = number = 0
    lenient = False
    for event in events:
        text = codec.text_of(event)
        if texts and size + len(text.json) > _ROW_BYTES:
            yield _row(response_id, number, texts, lenient=lenient)
            texts, size, lenient = [], 0, False
        texts.append(text.json)
        lenient |= text.lenient
        size += len(text.json)
        number = event["sequence_number"]
    if texts:
        yield _row(response_id, number, texts, lenient=lenient)


def _row(response_id: str, number: int, texts: Sequence[bytes | bytearray], *, lenient: bool) -> Put:
    text = codec.JsonText(b"[%b]" % b",".join(texts), lenient)
    return Put(_key(response_id, number), codec.pack_text(text))


def _key(response_id: str, number: int) -> str:
    return f"e/{response_id}/{number:08d}"
