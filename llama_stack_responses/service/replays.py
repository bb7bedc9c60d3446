"""Replays of the events of stored responses; concurrent readers of one response share it in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary, finalize

from ..admission import Reservation
from ..core.stream.events import Event
from ..core.stream.replay import replay
from ..store.archive import StoredResponse

_AT_ONCE: Final = 64
"""Events that are generated at a time, so that a stalled reader keeps few in memory and a fast one does not block the
event loop."""


@dataclass(frozen=True, weakref_slot=True, slots=True)
class _Held:
    stored: StoredResponse


class Replays:
    """The responses that are being replayed in this process."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[str, _Held] = WeakValueDictionary()

    def events(
        self, stored: StoredResponse, after: int, lease: Callable[[], Reservation]
    ) -> AsyncIterator[list[Event]]:
        """Return an iterator over the events after number `after`, in batches.

        Args:
            stored: a response that has ended.
            after: the number of the last event to skip.
            lease: creates the reservation for the response's bytes, if no other reader has it in memory. It is
                released after the last reader has ended.

        Raises:
            ApiError: 429 or 503, the reservation is refused.
        """
        response_id = stored.response["id"]
        held = self._held.get(response_id)
        if held is None or held.stored.version != stored.version:
            held = _Held(stored)
            finalize(held, lease().take(stored.size).release)
            self._held[response_id] = held
        return _events(held, after)


async def _events(held: _Held, after: int) -> AsyncIterator[list[Event]]:
    made = replay(held.stored.response, held.stored.transcript)
    rest = (each for each in made if each["sequence_number"] > after)
    while events := list(islice(rest, _AT_ONCE)):
        yield events
        await asyncio.sleep(0)
