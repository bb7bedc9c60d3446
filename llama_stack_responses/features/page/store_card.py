"""The store, for the view of what runs now: how large it is, how it grows, and when it deletes."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import Final

from ...core.card_sections import section, size, span
from ...core.errors import ApiError
from ...core.types import Json
from ...feature import Card
from ...lifecycle.periodic import Periodic
from ...logs import get_logger
from ...service.responses import OpenAIResponsesImpl
from ...store.records import Limited, Records
from ...store.sweep_guard import held_back

logger = get_logger(__name__)

_LOOK_SECONDS: Final = 300.0
_LOOKS: Final = 13
"""Looks of an hour."""

_TROUBLES: Final = {
    "volatile": "It may lose acknowledged responses: the log of this server says why.",
    "damaged": "Its file is damaged: see the guide Backup.",
    "held": "More has expired than a deletion may delete by itself: confirm it with `llama-stack-responses sweep`.",
}


class StoreSizes(Periodic):
    """Looks at the size of the store, so that its growth within an hour is known.

    Args:
        records: the store.

    Every coroutine raises `ApiError` 503 when the store does not answer.
    """

    def __init__(self, records: Records) -> None:
        super().__init__(self.look, "could not ask the store for its size", logger, _LOOK_SECONDS)
        self._records = records
        self._sizes: deque[tuple[float, int]] = deque(maxlen=_LOOKS)

    async def look(self) -> None:
        """Note the size."""
        found = await self.now()
        if found is not None:
            self._sizes.append((time.monotonic(), found))

    async def now(self) -> int | None:
        """Return the bytes that the store takes; None if it does not report them."""
        return await self._records.size()

    async def free(self) -> int | None:
        """Return the bytes that it can still take; None if it does not report them."""
        return await self._records.free() if isinstance(self._records, Limited) else None

    async def held_back(self) -> int:
        """Return how many responses and conversations wait for a person to confirm their deletion."""
        return await held_back(self._records)

    def growth(self, now: int) -> tuple[int, float] | None:
        """Return by how many bytes the store has grown to this size, and in how many seconds; None if unknown."""
        if not self._sizes:
            return None
        at, before = self._sizes[0]
        return now - before, time.monotonic() - at


def store_card(impl: OpenAIResponsesImpl, sizes: StoreSizes) -> Card:
    """Return the card. Only those who see the server are told how large the store is."""
    return Card("Store", partial(_sections, impl, sizes))


async def _sections(impl: OpenAIResponsesImpl, sizes: StoreSizes) -> list[Json]:
    config, checks = impl.config, impl.checks
    conversations = config.conversation_retention_days
    kept = [
        "keeps responses until they are deleted"
        if config.retention_days is None
        else f"keeps responses for {config.retention_days:g} days",
        f"conversations for {conversations:g} days" if conversations else "",
    ]
    due = checks.next_sweep
    if due is not None and (config.retention_days or conversations):
        kept.append(f"deletes what has expired in {span(due)}")
    if not config.roles.sees_server(impl.access.current_user()):
        return [section("Stored responses", kept)]
    try:
        size_now, free, held = await sizes.now(), await sizes.free(), await sizes.held_back()
    except ApiError:
        return [section(config.store.type, kept, trouble="The store does not answer.")]
    facts = [_size(size_now, sizes), f"{size(free)} free" if free is not None else "", *kept]
    troubles = {"volatile": checks.durability.volatile, "damaged": checks.integrity.damaged, "held": held}
    return [section(config.store.type, facts, trouble=" ".join(_TROUBLES[name] for name, on in troubles.items() if on))]


def _size(now: int | None, sizes: StoreSizes) -> str:
    if now is None:
        return "does not report its size"
    grown = sizes.growth(now)
    if grown is None or grown[1] < 1:
        return size(now)
    more, seconds = grown
    return f"{size(now)}, {size(abs(more))} {'more' if more >= 0 else 'less'} than {span(seconds)} ago"
