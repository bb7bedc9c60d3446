"""The histories of unstored responses that a connection remembers, so that requests can continue from them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

from ..admission import Reservation
from ..concurrency.offloading import in_thread_if_large
from ..core.errors import ApiError
from ..core.exchanges import with_exchanges
from ..core.json_blocks import blocks
from ..core.json_values import decoded_bytes
from ..core.types import Json

_MAX_RESPONSES: Final = 256
"""Maximum responses that can be continued; a shared part of their histories is kept once."""

_ROOM_BYTES: Final = 65_536
"""Bytes that must be free for the output of another response that is not stored."""


@dataclass(frozen=True, slots=True)
class RememberedTurn:
    """A history that is not stored, or only in part.

    Attributes:
        items: input and output that its last response added.
        size: their size in bytes: as JSON, and 160 for each value.
        before: the unstored part of the history that this response continued.
        base: the archive's name of the stored history before all that, or None if there is none.
    """

    items: list[Json]
    size: int
    before: RememberedTurn | None
    base: str | None

    @property
    def unstored(self) -> list[Json]:
        """All items after `base`, oldest first."""
        parts: list[list[Json]] = []
        turn: RememberedTurn | None = self
        while turn:
            parts.append(turn.items)
            turn = turn.before
        return [*chain.from_iterable(reversed(parts))]


class ConnectionMemory:
    """The histories of one connection's responses. At a limit, the oldest is dropped.

    Args:
        limit: maximum bytes of remembered items.
        reservation: counts them for the user.
    """

    def __init__(self, limit: int, reservation: Reservation) -> None:
        self._limit = limit
        self._reservation = reservation
        self._turns: OrderedDict[str, RememberedTurn] = OrderedDict()
        self._uses: dict[int, int] = {}
        """How many responses and later turns use a turn, by its identity."""
        self._held = 0
        self._closed = False

    def find(self, response_id: str) -> RememberedTurn | None:
        """Return the history that ends with this response; None if it is stored, dropped or another connection's."""
        return self._turns.get(response_id)

    def forget(self, response_id: str) -> None:
        """Drop the history that ends with this response, if it is remembered."""
        if turn := self._turns.pop(response_id, None):
            self._leave(turn)
            self._reservation.resize(self._held)

    async def check(self, items: list[Json]) -> None:
        """Check that there is room for a response to these items, before a model gets a request.

        Raises:
            ApiError: 429 or 503, the connections of the user, or all connections, remember too much.
        """
        size = await in_thread_if_large(partial(_size, items), items)
        if not self._closed:
            self._reservation.resize(self._held + size + _ROOM_BYTES)
            self._reservation.resize(self._held)

    async def remember(
        self,
        response: Json,
        new_items: list[Json],
        exchanges: Mapping[str, Json],
        before: RememberedTurn | None,
        base: str | None,
    ) -> None:
        """Remember a response: the request's items, then its output with its exchanges, after the history `before`.

        It is dropped if there is no room for it alone.
        """
        items = [*new_items, *with_exchanges(response["output"], exchanges)]
        turn = RememberedTurn(items, await in_thread_if_large(partial(_size, items), items), before, base)
        if self._closed:
            return
        self._turns[response["id"]] = turn
        self._enter(turn)
        while self._turns and not self._fits():
            self._leave(self._turns.popitem(last=False)[1])
        self._reservation.resize(self._held)

    def close(self) -> None:
        """Drop everything, and remember nothing more: the connection has ended."""
        self._closed = True
        self._turns.clear()
        self._uses.clear()
        self._held = 0
        self._reservation.release()

    def _fits(self) -> bool:
        if len(self._turns) > _MAX_RESPONSES or self._held > self._limit:
            return False
        try:
            self._reservation.resize(self._held)
        except ApiError:
            return False
        return True

    def _enter(self, tip: RememberedTurn) -> None:
        """Count a history; a part that others share is counted already."""
        turn: RememberedTurn | None = tip
        while turn:
            uses = self._uses.get(id(turn), 0)
            self._uses[id(turn)] = uses + 1
            if uses:
                return
            self._held += turn.size
            turn = turn.before

    def _leave(self, tip: RememberedTurn) -> None:
        """Subtract what no other history shares."""
        turn: RememberedTurn | None = tip
        while turn:
            self._uses[id(turn)] -= 1
            if self._uses[id(turn)]:
                return
            del self._uses[id(turn)]
            self._held -= turn.size
            turn = turn.before


def _size(items: list[Json]) -> int:
    return decoded_bytes(b"".join(blocks(items)))
