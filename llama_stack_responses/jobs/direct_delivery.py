"""Passes the deltas of a job that runs in this process on to its waiting readers, without reading the store.

A reader that waits for the next event has seen all events before it. So the batch that follows is written to its client
as soon as it is stored. Everything else is read from the event log: events that are not deltas, and what a reader has
missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from math import inf
from typing import Final

from ..generation.shared_events import SharedEvents
from .notifier import Subscription

type WriteEvents = Callable[[SharedEvents], bool]
"""Passes events on to a client without waiting; returns False if that is not possible."""

_READERS_PER_BATCH: Final = 16
"""Clients that are written to in one iteration of the event loop."""


class DirectClient:
    """The client of a reader, to which deltas can be written without waiting.

    Args:
        writer: returns what writes to the client, once the head of the answer was sent; None if nothing can.

    Attributes:
        write: writes events, or refuses them; None while the reader has to send them.
        last: the number of the last event that was written; -1 if there was none.
        written_at: when it was written, as the event loop counts time.
    """

    def __init__(self, writer: Callable[[], WriteEvents | None]) -> None:
        self._writer = writer
        self.write: WriteEvents | None = None
        self.last = -1
        self.written_at = -inf

    def connect(self) -> None:
        """Begin to write: the head was sent."""
        self.write = self._writer()


class Reader:
    """A reader of one response.

    Args:
        subscription: its subscription to the response's notifications.
        after: the number of the last event that it has seen.
        client: its client; None if events cannot be written to it.

    Attributes:
        after: the number of the last event that it has seen, or that was written to its client.
        seen_at: when that was, as the event loop counts time.
        waits: whether it waits for the next event.
    """

    def __init__(self, subscription: Subscription, after: int, client: DirectClient | None) -> None:
        self.subscription = subscription
        self.after = after
        self.seen_at = asyncio.get_running_loop().time()
        self._client = client
        self.waits = False

    def mark_seen(self, number: int) -> None:
        """Note that the event of this number was seen."""
        self.after, self.seen_at = number, asyncio.get_running_loop().time()

    async def wait(self, poll: float, silence: float) -> bool:
        """Wait for a notification about events that have to be read, and return whether there was one.

        Args:
            poll: seconds without an event after which the wait ends, on a store without notifications.
            silence: seconds without an event after which the wait ends on any store.
        """
        left = self.seen_at + silence - asyncio.get_running_loop().time()
        self.waits = True
        try:
            return await self.subscription.wait(poll, max(0.0, left), lambda: self.seen_at)
        finally:
            self.waits = False

    def takes(self, events: SharedEvents) -> bool:
        """Return whether the reader waits for these events, and its client can be written to."""
        writes = self._client is not None and self._client.write is not None
        return self.waits and writes and events.first == self.after + 1

    def pass_on(self, events: SharedEvents) -> bool:
        """Write stored events to the client; return False if the reader has to read them."""
        client = self._client
        if client is None or client.write is None or not self.takes(events):
            return False
        try:
            if not client.write(events):
                return False
        except Exception:  # noqa: BLE001 - the reader finds the same; the job must not end because of one client
            return False
        client.last = events.last
        self.mark_seen(client.last)
        client.written_at = self.seen_at
        return True


class Readers:
    """The readers of this process, by the response that they read."""

    def __init__(self) -> None:
        self._readers: dict[str, dict[Reader, None]] = {}  # each in the order of its begin

    @contextmanager
    def joined(self, response_id: str, reader: Reader) -> Iterator[Reader]:
        """Pass events of this response on to the reader within the block."""
        readers = self._readers.setdefault(response_id, {})
        readers[reader] = None
        try:
            yield reader
        finally:
            del readers[reader]
            if not readers:
                del self._readers[response_id]

    def pass_on(self, response_id: str, events: SharedEvents) -> AbstractSet[Subscription]:
        """Pass stored events on to the readers that wait for them; return the subscriptions of those readers.

        Of many readers, the others follow in the next iterations of the event loop. A reader that has to read the
        events itself is notified then.
        """
        readers = self._readers.get(response_id)
        if not readers:
            return frozenset()
        taking = [each for each in readers if each.takes(events)]
        self._pass_on(taking, events)
        return {each.subscription for each in taking}

    def _pass_on(self, readers: Sequence[Reader], events: SharedEvents) -> None:
        for reader in readers[:_READERS_PER_BATCH]:
            if not reader.pass_on(events):
                reader.subscription.notify()
        if more := readers[_READERS_PER_BATCH:]:
            asyncio.get_running_loop().call_soon(self._pass_on, more, events)
