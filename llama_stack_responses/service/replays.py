"""Responses whose events are made again, each held once for all of its readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary, finalize

from ..admission import Lease
from ..core.stream.events import Event
from ..core.stream.replay import replay
from ..store import codec
from ..store.archive import StoredResponse

_AT_ONCE: Final = 64
"""Events that are made at a time, so that a reader that stalls holds few, and one that does not holds up no other."""


@dataclass(frozen=True, weakref_slot=True, slots=True)
class _Held:
    stored: StoredResponse


class Replays:
    """Knows the responses that are being replayed in this process."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[str, _Held] = WeakValueDictionary()

    def events(self, stored: StoredResponse, after: int, lease: Callable[[], Lease]) -> AsyncIterator[list[Event]]:
        """The events behind number `after`, some at a time.

        Args:
            stored: a response that has ended, as it is now.
            lease: makes the lease that the response's bytes go onto if no other reader holds it; it is released when
                the last reader has gone.

        Raises:
            ApiError: there is no room for the response's bytes.
        """
        response_id = stored.response["id"]
        held = self._held.get(response_id)
        if held is None or held.stored != stored:
            held = _Held(stored)
            finalize(held, lease().take(len(codec.dumps(stored.response))).release)
            self._held[response_id] = held
        return _events(held, after)


async def _events(held: _Held, after: int) -> AsyncIterator[list[Event]]:
    made = replay(held.stored.response, held.stored.transcript)
    rest = (each for each in made if each["sequence_number"] > after)
    while events := list(islice(rest, _AT_ONCE)):
        yield events
        await asyncio.sleep(0)
