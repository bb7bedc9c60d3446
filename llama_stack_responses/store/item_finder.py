"""Find stored items by their ids."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import batched
from typing import Any, Final

from ..core.ids import seeded, tag_of
from ..core.owner import Owner
from ..core.types import Json
from . import item_ids
from .content_names import Hasher
from .decoder import Decoder
from .layout import Entry, further_pointers, read_pointer, tags_of
from .read_allowance import ReadAllowance
from .records import Records, after_prefix

_ITEMS_PER_LOOKUP: Final = 100
"""Items that are looked up at a time."""

_POINTERS_PER_READ: Final = 8
"""Further pointers of an item that are read at a time; nearly always the first leads to it."""


class ItemFinder:
    """Finds items of responses and conversations.

    Args:
        records: the store.
        decoder: decodes the stored values.
    """

    def __init__(self, records: Records, decoder: Decoder) -> None:
        self._records = records
        self._decoder = decoder

    async def find(
        self, owner: Owner, item_ids: Sequence[str], allowance: ReadAllowance | None = None
    ) -> AsyncIterator[tuple[str, Json]]:
        """Yield the owner's stored items that have these ids, each with its id, in any order.

        Each record is read and decoded once, however many of the items it holds, and only when the iteration reaches
        it. If an item is not stored, some of the others may be left out.

        Raises:
            TooLarge: the records that hold them exceed `allowance`.
        """
        allowance = allowance or ReadAllowance()
        for ids in batched(item_ids, _ITEMS_PER_LOOKUP):
            left = set(ids)
            # An item is mostly in the partition of its id.
            async for item_id, item in self._find(owner, ids, (), allowance):
                left.discard(item_id)
                yield item_id, item
            if left and (tags := await tags_of(self._records, owner)):
                async for found in self._find(owner, sorted(left), [0, *tags], allowance):
                    yield found

    async def _find(
        self, owner: Owner, ids: Sequence[str], tags: Sequence[int], allowance: ReadAllowance
    ) -> AsyncIterator[tuple[str, Json]]:
        """Yield items as `find`, whose records have their own tags or one of `tags`."""
        hashers = {tag: Hasher(owner, tag) for tag in (*map(tag_of, ids), *tags)}
        rows = {
            item_id: [
                row for tag in dict.fromkeys([tag_of(item_id), *tags]) for row in _pointers_of(hashers[tag], item_id)
            ]
            for item_id in ids
        }
        pointers = await self._records.get_many([row for of_item in rows.values() for row in of_item])
        indices_by_key: dict[str, list[tuple[str, int]]] = {}
        for item_id, of_item in rows.items():
            if row := next(filter(pointers.__contains__, of_item), None):
                key, index = read_pointer(pointers[row].value)
                indices_by_key.setdefault(key, []).append((item_id, index))
        left = dict(rows)
        for key, named in indices_by_key.items():
            for item_id, item in await self._items_at(key, named, allowance):
                del left[item_id]
                yield item_id, item
        for item_id, of_item in left.items():
            remote = await self._elsewhere(item_id, of_item, allowance)
            if remote is None:
                # A reference to it is refused, also if other items exist.
                break
            yield item_id, remote

    async def _elsewhere(self, item_id: str, rows: Sequence[str], allowance: ReadAllowance) -> Json | None:
        """Return an item from a record where it is stored too, after its first record is gone."""
        for row in rows:
            prefix = further_pointers(row)
            start, end = prefix, after_prefix(prefix)
            while further := await self._records.range(start, end, limit=_POINTERS_PER_READ):
                for _, pointer in further:
                    key, index = read_pointer(pointer.value)
                    for _, item in await self._items_at(key, [(item_id, index)], allowance):
                        return item
                start = further[-1][0] + "\0"
        return None

    async def _items_at(
        self, key: str, named: Sequence[tuple[str, int]], allowance: ReadAllowance
    ) -> Sequence[tuple[str, Json]]:
        """Return the items with these ids and indices that one record holds."""
        record = (await self._records.get_many([key])).get(key)
        items = _items(key, *await self._decoder.decode([record.value], allowance)) if record else ()
        if item_ids.are_own_ids(items):
            return await item_ids.find(self._records, self._decoder, items, named, allowance)
        return [(item_id, items[index]) for item_id, index in named if index < len(items)]


def _pointers_of(hasher: Hasher, item_id: str) -> Sequence[str]:
    """Return the keys of the pointers that may lead to the item, the item's own first."""
    seed = seeded(item_id)
    return [f"i/{hasher.item(each)}" for each in ([item_id, seed.seed] if seed else [item_id])]


def _items(key: str, stored: Any) -> Sequence[Json]:
    """Return the items of the record to which a pointer leads, given its decoded value."""
    match key[:2]:
        case "r/":
            output: Sequence[Json] = Entry.from_stored(stored).response["output"]
            return output
        case "m/":
            return [stored]
    items: Sequence[Json] = stored
    return items
