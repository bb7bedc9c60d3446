"""The events of background responses, for readers on any server.

e/<response>/<number>    a row of events; the number is that of its last
s/<response>             somebody reads, or has read, the events; after the end, the row that follows
t/<second>/<response>    from then on the journal may be dropped

The first two are written only on the condition that the job of the response is there. Whoever removes the job writes
the third in the same commit, or leaves neither of the first two. So the journal of a response that is gone goes too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Final

from ..core.stream.events import TERMINAL, Event
from ..store import codec
from ..store.records import Condition, Delete, Ensure, Op, Put, Records, VersionIs, Wake, after_prefix, committed
from .notifier import Bell

_ROWS: Final = 64
"""Rows that are taken in one round trip."""

_AHEAD: Final = 8
"""Rows that a reader takes in one round trip: those that one who stalls has in hand."""

_ROW: Final = 65_536
"""Characters in a row, about."""

_HEAD: Final = 256
"""Those of an event without its delta, about."""

_POLL: Final = 0.2
"""Seconds after which a reader looks whether another process has written, on a store that does not say so."""


class Journal:
    """Keeps events and gives them to whoever reads along.

    Args:
        records: where they go.
        bell: rings when events of a response were written.
    """

    def __init__(self, records: Records, bell: Bell) -> None:
        self._records = records
        self._bell = bell

    def batch(self, response_id: str, events: Sequence[Event]) -> list[Op]:
        """What stores `events`, which follow those stored before."""
        rows = [Put(_key(response_id, piece[-1]["sequence_number"]), codec.encode(piece)) for piece in _pieces(events)]
        return [*rows, Wake(response_id)] if rows else []

    async def read(self, response_id: str, after: int, rows: int = _ROWS) -> list[Event]:
        """Some of the stored events behind number `after`, the next ones; none if there are none yet."""
        start, end = _key(response_id, after + 1), after_prefix(f"e/{response_id}/")
        found = await self._records.range(start, end, limit=rows)
        events: list[Event] = []
        for _, record in found:
            # A worker that did not hear that a batch was written writes it again, with more behind.
            news = [event for event in codec.decode(record.value) if event["sequence_number"] > after]
            events += news
            after = news[-1]["sequence_number"] if news else after
        return events

    async def read_all(self, response_id: str, after: int) -> list[Event]:
        """All stored events behind number `after`."""
        events: list[Event] = []
        while more := await self.read(response_id, events[-1]["sequence_number"] if events else after):
            events += more
        return events

    async def has(self, response_id: str) -> bool:
        """Whether any events are stored."""
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
        """The events behind number `after`, as they come, up to the terminal one.

        An empty list says that none came for `silence` seconds. The iterator ends early if nothing is there any more
        and the response no longer `lasts`.

        Args:
            fence: gives what holds for as long as the response's job is as it is now; None if there is no job.
        """
        await self._announce(response_id, fence)
        loop = asyncio.get_running_loop()
        spoke = loop.time()
        rung, lasting = False, True
        with self._bell.listen(response_id) as ear:
            while True:
                if events := await self.read(response_id, after, _AHEAD):
                    after, spoke, rung = events[-1]["sequence_number"], loop.time(), False
                    yield events
                    if events[-1]["type"] in TERMINAL:
                        return
                elif not lasting:
                    return
                elif rung:
                    # Not for events: perhaps for the end.
                    rung, lasting = False, await lasts()
                elif (left := spoke + silence - loop.time()) <= 0:
                    spoke = loop.time()
                    yield []
                elif not (rung := await ear.wait(_POLL, left)):
                    lasting = await lasts()

    async def _announce(self, response_id: str, fence: Callable[[], Awaitable[Condition | None]]) -> None:
        """Says that somebody reads the events, unless the response has ended.

        Events are taken back only before the end, and nothing would remove the row if it were written after a delete.
        """
        while condition := await fence():
            if await committed(self._records, [Ensure(f"s/{response_id}", b"")], [condition]):
                return

    def unread(self, response_id: str) -> list[Op]:
        """What removes the readers' row of a response that has no events and never will, with its job."""
        return [Delete(f"s/{response_id}")]

    def cut_back(self, response_id: str, events: Sequence[Event]) -> tuple[list[Op], list[VersionIs]]:
        """What takes back `events`, the last ones, on the condition that nobody has read any."""
        ops: list[Op] = [Delete(_key(response_id, event["sequence_number"])) for event in events]
        return ops, [VersionIs(f"s/{response_id}", None)]

    def expire(self, response_id: str, second: float) -> list[Op]:
        """Has the journal, which is whole with this commit, dropped once `second` has passed."""
        row = f"t/{int(second):08x}/{response_id}"
        return [Put(row, b""), Put(f"s/{response_id}", row.encode())]

    async def sweep(self, *, limit: int = 10) -> int:
        """Drops journals whose time has come, at most `limit`; how many."""
        now = int(await self._records.now())
        due = await self._records.range("t/", f"t/{now:08x}", limit=limit)
        for row, _ in due:
            await self.forget(row.rpartition("/")[2])
            await self._records.commit([Delete(row)])
        return len(due)

    async def forget(self, response_id: str) -> None:
        """Drops the journal of a response that has ended, from its end: whoever reads it meanwhile sees no gap."""
        prefix, reader = f"e/{response_id}/", f"s/{response_id}"
        while found := await self._records.range(prefix, after_prefix(prefix), limit=_ROWS, reverse=True):
            await self._records.commit([Delete(key) for key, _ in found])
        known = (await self._records.get_many([reader])).get(reader)
        await self._records.commit([Delete(reader), *([Delete(known.value.decode())] if known and known.value else [])])


def _pieces(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """The events in rows that are not too large for a reader to have in hand."""
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
