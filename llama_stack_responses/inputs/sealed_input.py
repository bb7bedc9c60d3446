"""Opens the sealed items that clients send, and reads those from the store whose secret is gone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..concurrency.offloading import computed
from ..core.owner import Owner
from ..core.types import Json
from ..sealing.sealed_items import REASONING, Opened, SealedItems, unreadable
from ..sealing.sealer import UnknownSecret, unverified
from .history import HistoryReader, Hold


class SealedInput:
    """Opens sealed items of requests.

    Args:
        sealed: opens them.
        history_reader: reads stored items.
    """

    def __init__(self, sealed: SealedItems, history_reader: HistoryReader) -> None:
        self._sealed = sealed
        self._history_reader = history_reader

    async def open(
        self, items: list[Json], owner: Owner, opened: Opened, *, param: str = "input", hold: Hold | None = None
    ) -> list[Json]:
        """Return the items that the owner sends as `param`, and open those that are sealed.

        Reasoning whose secret is gone is replaced by the stored item with the same id, which shows what may be shown of
        it.

        Args:
            opened: receives the content of the sealed items.
            hold: called with the number of bytes that are about to be held; it may raise.

        Raises:
            ApiError: 400, an item does not open and is not stored, or they hold too much; or what `hold` raises.
        """
        await self._sealed.open(items, owner, opened, verify=True, param=param, hold=hold)
        unread = await computed(partial(unreadable, items, opened), items)
        if not unread:
            return items
        ids = list(dict.fromkeys(item["id"] for item in unread if item["type"] == REASONING and item.get("id")))
        stored = await self._history_reader.stored_items(owner, ids, param, hold)
        instead = {item_id: item for item_id, item in stored.items() if item["type"] == REASONING}
        await self._sealed.open(list(instead.values()), owner, opened, verify=False, param=param, hold=hold)
        return await computed(partial(_replaced, items, unread, instead), items)


def _replaced(items: Sequence[Json], unread: Sequence[Json], stored: dict[str, Json]) -> list[Json]:
    """Return the items with each of `unread` replaced by the one that is stored.

    Raises:
        ApiError: 400, one is not stored.
    """
    replaced = {id(item) for item in unread}
    for item in unread:
        if item.get("id") not in stored:
            raise unverified(item, UnknownSecret())
    return [stored[item["id"]] if id(item) in replaced else item for item in items]
