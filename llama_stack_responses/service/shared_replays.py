"""Replays of the events of stored responses; concurrent readers of one response share it in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary, finalize

from ..admission import Reservation
from ..core.statuses import UNFINISHED
from ..store.loaded_response import StoredResponse
from ..stream.events import Event
from ..stream.replay import replay

_EVENTS_PER_BATCH: Final = 64
"""Events that are generated at a time, so that a stalled reader keeps few in memory and a fast one does not block the
event loop."""


@dataclass(frozen=True, eq=False, weakref_slot=True, slots=True)
class _LoadedReplay:
    stored: StoredResponse

    @property
    def ended(self) -> bool:
        return self.stored.response["status"] not in UNFINISHED


class Replays:
    """The responses that are being replayed in this process."""

    def __init__(self) -> None:
        self._loaded: WeakValueDictionary[tuple[str, int], _LoadedReplay] = WeakValueDictionary()
        self._loading: dict[tuple[str, int], asyncio.Future[_LoadedReplay | None]] = {}

    async def events(
        self,
        response_id: str,
        version: int,
        load: Callable[[], Awaitable[StoredResponse]],
        after: int,
        reserve: Callable[[], Reservation],
    ) -> AsyncGenerator[list[Event]] | None:
        """Return an iterator over the events after number `after`, in batches.

        It is None if the response is read anew and has not ended: the server of the store that had its end has failed.

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
        loaded = self._loaded.get(key)
        while loaded is None:
            if loading := self._loading.get(key):
                loaded = await asyncio.shield(loading)
            else:
                loaded = await self._load(key, load, reserve)
        return _events(loaded, after) if loaded.ended else None

    async def _load(
        self,
        key: tuple[str, int],
        load: Callable[[], Awaitable[StoredResponse]],
        reserve: Callable[[], Reservation],
    ) -> _LoadedReplay:
        """Read the response; other readers wait for it meanwhile, and one of them tries again if this one fails."""
        self._loading[key] = loading = asyncio.get_running_loop().create_future()
        loaded = None
        try:
            stored = await load()
            reservation = reserve().add(stored.size)
            loaded = _LoadedReplay(stored)
            finalize(loaded, reservation.release)
            if loaded.ended:
                self._loaded[key] = loaded
            return loaded
        finally:
            del self._loading[key]
            loading.set_result(loaded)


async def _events(loaded: _LoadedReplay, after: int) -> AsyncGenerator[list[Event]]:
    rebuilt = replay(loaded.stored.response, loaded.stored.transcript)
    rest = (each for each in rebuilt if each["sequence_number"] > after)
    while events := list(islice(rest, _EVENTS_PER_BATCH)):
        yield events
        await asyncio.sleep(0)
