"""Opens the sealed items that clients send; what does not open is read from the store, dropped or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from ..concurrency.offloading import in_thread_if_many
from ..core.input_policy import DEFAULT_POLICY, InputPolicy
from ..core.owner import Owner
from ..core.types import Json
from ..items.kinds.compaction import COMPACTION
from ..logs import get_logger
from ..sealing.sealed_items import REASONING, Opened, SealedItems, unreadable
from ..sealing.sealer import SEALED, UnknownSecret, unverified
from .history import HistoryReader, Hold

logger = get_logger(__name__)

_NAMED: Final = 3
"""Items that a log line names."""
_NOTE: Final = (
    "[The conversation before this point was replaced by a summary that another server has sealed. It cannot be read "
    "here. If something of it is needed, ask for it.]"
)
"""What stands in place of a compaction item."""


class SealedInput:
    """Opens sealed items of requests.

    Args:
        sealed: opens them.
        history_reader: reads stored items.
        policy: whether what does not open is dropped.
    """

    def __init__(
        self, sealed: SealedItems, history_reader: HistoryReader, policy: InputPolicy = DEFAULT_POLICY
    ) -> None:
        self._sealed = sealed
        self._history_reader = history_reader
        self._dropped = frozenset({REASONING, COMPACTION} if policy.drops_reasoning else ())

    async def open(
        self, items: list[Json], owner: Owner, opened: Opened, *, param: str = "input", hold: Hold | None = None
    ) -> list[Json]:
        """Return the items that the owner sends as `param`, and open those that are sealed.

        Reasoning that does not open is replaced by the stored item with the same id, which shows what may be shown of
        it. If it is not stored, the policy decides whether its sealed part is dropped, and whether a compaction item
        becomes a note that its summary is lost.

        Args:
            opened: receives the content of the sealed items.
            hold: called with the number of bytes that are about to be held; it may raise.

        Raises:
            ApiError: 400, an item does not open, is not stored and is not dropped, or they hold too much; or what
                `hold` raises.
        """
        await self._sealed.open(items, owner, opened, verify=True, excused=self._dropped, param=param, hold=hold)
        unread = await in_thread_if_many(partial(unreadable, items, opened), items)
        if not unread:
            return items
        ids = list(dict.fromkeys(item["id"] for item in unread if item["type"] == REASONING and item.get("id")))
        found = await self._history_reader.stored_items(owner, ids, param, hold)
        stored = {item_id: item for item_id, item in found.items() if item["type"] == REASONING}
        await self._sealed.open(list(stored.values()), owner, opened, verify=False, param=param, hold=hold)
        lost = [item for item in unread if item.get("id") not in stored]
        for item in lost:
            if item["type"] not in self._dropped:
                raise unverified(item, UnknownSecret())
        _log(lost)
        return await in_thread_if_many(partial(_replaced, items, unread, stored), items)


def _log(lost: Sequence[Json]) -> None:
    """Log which items were dropped."""
    reasoning, summaries = (_ids(lost, kind) for kind in (REASONING, COMPACTION))
    if reasoning:
        logger.warning("dropped reasoning of a request that cannot be unsealed: %d (%s)", *reasoning)
    if summaries:
        logger.warning("dropped summaries of a request that cannot be unsealed: %d (%s)", *summaries)


def _ids(items: Sequence[Json], kind: str) -> tuple[int, str] | None:
    """Return the number of items of a type, with the ids of some; None if there are none."""
    ids = [item.get("id", "an item without an id") for item in items if item["type"] == kind]
    return (len(ids), ", ".join(ids[:_NAMED])) if ids else None


def _replaced(items: Sequence[Json], unread: Sequence[Json], stored: Mapping[str, Json]) -> list[Json]:
    """Return the items with each of `unread` replaced by the stored one, or else without its sealed part."""
    instead = {id(item): stored.get(item.get("id", "")) or _without_seal(item) for item in unread}
    return [instead.get(id(item), item) for item in items]


def _without_seal(item: Json) -> Json:
    if item["type"] == COMPACTION:
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": _NOTE}]}
    return {name: value for name, value in item.items() if name != SEALED}
