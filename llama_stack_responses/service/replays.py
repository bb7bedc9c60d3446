"""Replays of the events of stored responses; concurrent readers of one response share it in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary, finalize

from ..admission import Reservation
from ..core.stream.events import Event
from ..core.stream.replay import replay
from ..store.stored_response import StoredResponse

_EVENTS_PER_BATCH: Final = 64
"""Events that are generated at a time, so that a stalled reader keeps few in memory and a fast one does not block the
event loop."""


@dataclass(frozen=True, eq=False, weakref_slot=True, slots=True)
class _Held:
    stored: StoredResponse


class Replays:
    """The responses that are being replayed in this process."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[tuple[str, int], _Held] = WeakValueDictionary()
        self._loading: dict[tuple[str, int], asyncio.Future[_Held | None]] = {}

    async def events(
        self,
        response_id: str,
        version: int,
        load: Callable[[], Awaitable[StoredResponse]],
        after: int,
        reserve: Callable[[], Reservation],
    ) -> AsyncGenerator[list[Event]]:
        """Return an iterator over the events after number `after`, in batches.

        Args:
            response_id: the id of a response that has ended.
            version: the version of its record.
            load: reads it, if no other reader has it in memory.
            after: the number of the last event to skip.
            reserve: creates the reservation for the response's bytes, if no other reader has it in memory. It is
                released after the last reader has ended.

        Raises:
            ApiError: 429 or 503, the reservation is refused; or as from `load`.
        """
        key = (response_id, version)
        held = self._held.get(key)
        while held is None:
            if loading := self._loading.get(key):
                held = await asyncio.shield(loading)
            else:
                held = await self._load(key, load, reserve)
        return _events(held, after)

    async def _load(
        self,
        key: tuple[str, int],
        load: Callable[[], Awaitable[StoredResponse]],
        reserve: Callable[[], Reservation],
    ) -> _Held:
        """Read the response; other readers wait for it meanwhile, and one of them tries again if this one fails."""
        self._loading[key] = loading = asyncio.get_running_loop().create_future()
        held = None
        try:
            stored = await load()
            reservation = reserve().add(stored.size)
            held = self._held[key] = _Held(stored)
            finalize(held, reservation.release)
            return held
        finally:
            del self._loading[key]
            loading.set_result(held)


async def _events(held: _Held, after: int) -> AsyncGenerator[list[Event]]:
    rebuilt = replay(held.stored.response, held.stored.transcript)
    rest = (each for each in rebuilt if each["sequence_number"] > after)
    while events := list(islice(rest, _EVENTS_PER_BATCH)):
        yield events
        await asyncio.sleep(0)
