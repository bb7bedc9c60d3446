"""Store conversations and their items.

A history is immutable and lives as long as a response refers to it. A conversation changes, and lives until it is
deleted or was not changed for long. It therefore has its own items: one row each, at a position equal to the number of
items that were added before. However long a conversation is, a turn adds its own rows and rewrites one, deleting an
item deletes its row, and a page is a range.

The history of a response in a conversation begins with a stand-in for the conversation as it was then. Reading the
history replaces the stand-in by those of the items that still exist.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from secrets import token_hex
from typing import Final

from ..concurrency.offloading import in_thread_if_large
from ..core.errors import ApiError, bad_request
from ..core.ids import tag_of
from ..core.owner import Owner
from ..core.types import Json
from ..items.listed_items import Order
from ..logs import get_logger
from . import codec
from .conflict_retry import ConflictRetry
from .content_names import Hasher
from .decoder import Decoder
from .layout import further_pointer, imported, read_pointer, used
from .read_allowance import PAGE_BYTES, ReadAllowance
from .records import (
    Condition,
    Delete,
    Ensure,
    Moving,
    Op,
    Put,
    Record,
    Records,
    VersionIs,
    after_prefix,
    as_moved,
    bytes_of,
    committed,
    find_replicated,
    pages_of,
    read_replicated,
)
from .retention import Counts

logger = get_logger(__name__)

_STAND_IN: Final = "conversation"
_DELETES_PER_COMMIT: Final = 200
"""Number of items that one commit deletes."""
_ITEMS_PER_READ: Final = 1000
"""Number of items that one step of reading in steps reads."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation without its items.

    Attributes:
        id: `conv_...`.
        owner: the owner of the conversation.
        created_at: Unix time in seconds.
        metadata: the client's own key-value pairs.
        end: the position of the next item: the number of items ever added.
        used_at: when it was last changed, Unix time in seconds; 0 if a version without this field wrote it.
    """

    id: str
    owner: Owner
    created_at: int
    metadata: Mapping[str, str]
    end: int = 0
    used_at: int = 0

    @property
    def key(self) -> str:
        """The key of the conversation's record."""
        return f"c/{self.id}"

    def encode(self) -> bytes:
        """Return the record's value."""
        fields = {"created_at": self.created_at, "metadata": self.metadata, "end": self.end, "used_at": self.used_at}
        return codec.encode({"owner": self.owner.encode(), **fields})

    @staticmethod
    def decode(conversation_id: str, record: Record) -> Conversation:
        """Decode the result of `encode`."""
        return Conversation.from_stored(conversation_id, codec.decode(record.value))

    @staticmethod
    def from_stored(conversation_id: str, stored: Json) -> Conversation:
        """Return the conversation, given the decoded value of its record."""
        fields = {**stored, "id": conversation_id, "owner": Owner(*stored["owner"])}
        return Conversation(**codec.known(Conversation, fields))


def stand_in(conversation: Conversation) -> Json:
    """Return an item that stands, as the first of a history, for the conversation's present items.

    Each stand-in is unique. Histories with equal items share nodes, but two turns need items with different ids.
    """
    return {"type": _STAND_IN, "conversation": conversation.id, "end": conversation.end, "turn": token_hex(8)}


def begins_with_stand_in(items: Sequence[Json]) -> bool:
    """Return whether a stand-in for a conversation precedes the items."""
    return bool(items) and items[0]["type"] == _STAND_IN


def without_stand_in(items: Sequence[Json]) -> Sequence[Json]:
    """Return a history's own items."""
    return items[1:] if begins_with_stand_in(items) else items


class ConversationAppend:
    """Items that a commit appends to a conversation; the commit may contain other ops.

    An item that the conversation already has (by its id) keeps its position. If the conversation is deleted meanwhile,
    nothing is added.

    Args:
        conversation_id: the conversation.
        owner: the presumed owner; `read` corrects it.
        items: the items, each with an id.
        now: seconds since the epoch.
    """

    def __init__(self, conversation_id: str, owner: Owner, items: Iterable[Json], now: float) -> None:
        self._now = int(now)
        self._id = conversation_id
        self._head = f"c/{conversation_id}"
        self.tag: Final = tag_of(conversation_id)
        """The tag of the conversation."""
        self._belong(owner, items)

    def _belong(self, owner: Owner, items: Iterable[Json]) -> None:
        self.used: Sequence[Ensure] = used(owner, self.tag)
        """The op that says that the owner has something with the tag: a failover may have lost it."""
        self._hasher = Hasher(owner, self.tag)
        self._items = {_address(self._hasher, self._id, item["id"]): item for item in items}
        self._keys = [self._head, *self._items]

    @property
    def pointers(self) -> list[str]:
        """The keys of the first pointers to the items: `plan` has to know those that ids from a client may have."""
        return [_first_pointer(address) for address in self._items]

    async def read(self, records: Records, *also: str) -> dict[str, Record]:
        """Read the records that `plan` needs, and the keys `also`.

        This takes one round trip, or two if the conversation belongs to another user. Behind a head that could still be
        lost, the items would be added at positions that others get: after a failover, another may have its version.
        """
        return await read_replicated(
            records, self.tag, partial(self._read, records, *also), lambda known: self._head in known
        )

    async def _read(self, records: Records, *also: str) -> dict[str, Record]:
        known = await records.get_many([*self._keys, *also])
        if self._head in known:
            owner = Conversation.decode(self._id, known[self._head]).owner
            if Hasher(owner).owner != self._hasher.owner:
                self._belong(owner, self._items.values())
                known |= await records.get_many(self._keys)
        return known

    def plan(self, known: Mapping[str, Record]) -> tuple[list[Op], list[Condition]]:
        """Return the ops and the conditions of the commit."""
        if self._head not in known:
            return [], []
        head = known[self._head]
        conversation = Conversation.decode(self._id, head)
        new = {address: item for address, item in self._items.items() if address not in known}
        changed = replace(conversation, end=conversation.end + len(new), used_at=self._now)
        ops: list[Op] = [Put(self._head, changed.encode())]
        for position, (address, item) in enumerate(new.items(), conversation.end):
            row = _row(self._id, position)
            ops += [Put(row, codec.encode(item)), Put(address, str(position).encode())]
            ops += [op for op in _pointers(self._hasher, address, row) if op.key not in known]
        return ops, [VersionIs(self._head, head.version)]

    def taken(self, known: Mapping[str, Record]) -> str | None:
        """Return the id of an item that the conversation already has; None if there is none."""
        return next((item["id"] for address, item in self._items.items() if address in known), None)


class ConversationStore:
    """Stores conversations.

    Every method raises `ApiError` 503 when the store is unavailable.

    Args:
        clock: returns the time of the store's clock, in seconds since the epoch.
    """

    def __init__(self, records: Records, decoder: Decoder, clock: Callable[[], float]) -> None:
        self._records = records
        self._decoder = decoder
        self._clock = clock

    async def create(self, conversation: Conversation, items: Sequence[Json]) -> None:
        """Store a new conversation with these items, each of which has an id.

        Raises:
            Conflict: the id is taken.
        """
        await self._records.commit(*await self._plan_new(conversation, items))

    async def import_conversation(self, conversation: Conversation, items: Sequence[Json]) -> bool:
        """Store a conversation of another server; return False if it is stored, or was imported and deleted."""
        mark = imported(conversation.id)
        ops, new = await self._plan_new(conversation, items)
        return await committed(self._records, [*ops, mark], [*new, VersionIs(mark.key, None)])

    async def _plan_new(self, conversation: Conversation, items: Sequence[Json]) -> tuple[list[Op], list[Condition]]:
        """Return the commit that stores a new conversation with these items."""
        append = self._append(conversation, items)
        known = await self._records.get_many(append.pointers) if items else {}
        known[conversation.key] = Record(conversation.encode(), 0)
        ops, _ = await in_thread_if_large(lambda: append.plan(known), items)
        return [*append.used, *ops], [VersionIs(conversation.key, None)]

    async def load(self, conversation_id: str) -> Conversation | None:
        """Return the conversation; None if it is unknown or deleted."""
        head = await find_replicated(self._records, tag_of(conversation_id), partial(self._head, conversation_id))
        return head[0] if head else None

    async def set_metadata(self, conversation_id: str, metadata: Mapping[str, str]) -> Conversation | None:
        """Replace the conversation's metadata and return it; None if it is unknown or deleted."""
        retry = ConflictRetry()
        while head := await self._lasting_head(conversation_id):
            await retry.wait()
            conversation, unchanged = replace(head[0], metadata=metadata, used_at=int(self._clock())), head[1]
            if await committed(self._records, [Put(conversation.key, conversation.encode())], [unchanged]):
                return conversation
        return None

    async def add(self, conversation: Conversation, items: Sequence[Json]) -> bool:
        """Append `items`, each of which has an id, to the conversation; return False if it is deleted.

        Raises:
            ApiError: 400, if one of them is already in the conversation.
        """
        append, retry = self._append(conversation, items), ConflictRetry()
        while True:
            await retry.wait()
            known = await append.read(self._records, *append.pointers)
            if taken := append.taken(known):
                raise bad_request(f"Item with id '{taken}' is already in this conversation.", "items", "invalid_value")
            ops, conditions = await in_thread_if_large(partial(append.plan, known), items)
            if not ops or await committed(self._records, [*append.used, *ops], conditions):
                return bool(ops)

    async def items(self, conversation_id: str, end: int, allowance: ReadAllowance | None = None) -> list[Json]:
        """Return all items at positions before `end`, in order.

        Raises:
            TooLarge: they exceed `allowance`.
        """
        allowance = allowance or ReadAllowance()
        first, last = _row(conversation_id, 0), _row(conversation_id, end)
        rows = await self._records.range(first, last, limit=end, max_bytes=allowance.past)
        values = [record.value for _, record in rows]
        allowance.check(sum(map(len, values)))
        return await self._decoder.decode(values, allowance)

    async def pages(self, conversation_id: str, end: int, max_bytes: int = PAGE_BYTES) -> AsyncIterator[list[Json]]:
        """Yield all items at positions before `end`, in order, in pages that end once they reach `max_bytes`."""
        first, last = _row(conversation_id, 0), _row(conversation_id, end)
        while rows := await self._records.range(first, last, limit=_ITEMS_PER_READ, max_bytes=max_bytes):
            items = await self._decoder.decode_until([record.value for _, record in rows], max_bytes)
            yield [item for item, _ in items]
            first = rows[len(items) - 1][0] + "\0"

    async def recent(self, conversation_id: str, end: int, allowance: ReadAllowance) -> list[Json]:
        """Return the last items before `end`, in order: as many as are within `allowance`, which has a limit."""
        first, last = _row(conversation_id, 0), _row(conversation_id, end)
        newest: list[Json] = []
        while (left := allowance.left or 0) > 0:
            rows = await self._records.range(
                first, last, limit=_ITEMS_PER_READ, reverse=True, max_bytes=min(PAGE_BYTES, left)
            )
            values = [record.value for _, record in rows]
            items = _fitting(await self._decoder.decode_until(values, left, allowance), left)
            newest += items
            if len(items) < len(rows) or not rows:
                break
            last = rows[-1][0]
        return newest[::-1]

    async def opening(self, conversation_id: str, end: int, max_bytes: int, allowance: ReadAllowance) -> list[Json]:
        """Return the first items before `end`, of at most `max_bytes` together; `allowance` counts the bytes read."""
        first, last = _row(conversation_id, 0), _row(conversation_id, end)
        rows = await self._records.range(first, last, limit=min(end, _ITEMS_PER_READ), max_bytes=max_bytes)
        values = [record.value for _, record in rows]
        return _fitting(await self._decoder.decode_until(values, max_bytes, allowance), max_bytes)

    async def newest(self, conversation_id: str, end: int, max_bytes: int) -> list[Json]:
        """Return the last items before `end`, in order: as many as it takes to reach `max_bytes`."""
        first, last = _row(conversation_id, 0), _row(conversation_id, end)
        rows = await self._records.range(first, last, limit=end, reverse=True, max_bytes=max_bytes)
        return [item for item, _ in await self._decoder.decode_until([record.value for _, record in rows], max_bytes)][
            ::-1
        ]

    async def page(
        self,
        conversation: Conversation,
        *,
        limit: int,
        after: str | None,
        order: Order,
        max_bytes: int = PAGE_BYTES,
        allowance: ReadAllowance | None = None,
    ) -> tuple[list[Json], bool]:
        """Return at most `limit` items after the one with the id `after`, and whether there are more.

        Args:
            max_bytes: the page ends once its items reach this many bytes.
            allowance: counts them as held.

        Raises:
            ApiError: 400, if `after` is not in the conversation.
        """
        first, last = 0, conversation.end
        if after is not None:
            position = await self._position(conversation, after)
            if position is None:
                raise bad_request(f"No item with id '{after}' is in this list.", "after", "invalid_value")
            first, last = (first, position[0]) if order == "desc" else (position[0] + 1, last)
        start, end = _row(conversation.id, first), _row(conversation.id, last)
        rows = await self._records.range(start, end, limit=limit, reverse=order == "desc", max_bytes=max_bytes)
        values = [record.value for _, record in rows]
        items = [item for item, _ in await self._decoder.decode_until(values, max_bytes, allowance)]
        is_cut = len(rows) == limit or bytes_of(record for _, record in rows) >= max_bytes
        ends_at = start if order == "desc" else _row(conversation.id, last - 1)
        if len(items) < len(rows) or not is_cut or not rows or rows[-1][0] == ends_at:
            return items, len(items) < len(rows)
        start, end = (start, rows[-1][0]) if order == "desc" else (rows[-1][0] + "\0", end)
        # What only tells that there are more items need not come back.
        return items, bool(await as_moved(self._records).range(start, end, limit=1))

    async def find(
        self, conversation: Conversation, item_id: str, allowance: ReadAllowance | None = None
    ) -> Json | None:
        """Return the item with this id, which `allowance` counts as held; None if it is not in the conversation."""
        position = await self._position(conversation, item_id)
        return await self._item(_row(conversation.id, position[0]), allowance) if position else None

    async def remove(self, conversation: Conversation, item_id: str) -> bool:
        """Remove an item from the conversation; return False if it does not exist."""
        hasher, retry = Hasher(conversation.owner, tag_of(conversation.id)), ConflictRetry()
        find = partial(self._position, conversation, item_id)
        while location := await read_replicated(self._records, tag_of(conversation.id), find, lambda _: True):
            await retry.wait()
            position, unchanged = location
            row = _row(conversation.id, position)
            # What has moved the row elsewhere is noticed.
            ops, found = await self._gone(self._records, hasher, {unchanged.key: row}, row)
            conditions = [unchanged, VersionIs(row, found[row].version if row in found else None)]
            if await committed(self._records, ops, conditions):
                return True
        return False

    async def delete(self, conversation_id: str) -> bool:
        """Delete the conversation with all its items; return False if it does not exist."""
        retry = ConflictRetry()
        while head := await self._lasting_head(conversation_id):
            await retry.wait()
            if await self._deleted(*head):
                return True
        return False

    async def count(self, oldest: str) -> Counts:
        """Count the conversations that `expire` deletes, and all: this reads all of them, without their items."""
        expired, stored, before = 0, 0, int(oldest, 16)
        async for conversation, _ in self._all():
            stored += 1
            expired += 0 < conversation.used_at < before
        return Counts(expired, stored)

    async def expire(self, oldest: str) -> int:
        """Delete the conversations that were last changed before `oldest`, and return their number.

        Those that do not say when they were changed count as changed now.
        """
        deleted, before = 0, int(oldest, 16)
        async for conversation, unchanged in self._all():
            if not conversation.used_at:
                now = replace(conversation, used_at=int(self._clock()))
                await committed(self._records, [Put(conversation.key, now.encode())], [unchanged])
            elif conversation.used_at < before:
                deleted += await self._deleted(conversation, unchanged)
        return deleted

    async def _all(self) -> AsyncIterator[tuple[Conversation, Condition]]:
        """Yield all conversations without their items, each with the condition that it is unchanged."""
        async for rows in pages_of(self._records, "c/"):
            for key, record in rows:
                yield Conversation.decode(key.removeprefix("c/"), record), VersionIs(key, record.version)

    async def resume(self, limit: int) -> None:
        """Finish at most `limit` interrupted deletions."""
        for left, record in await self._records.range("w/", after_prefix("w/"), limit=limit):
            await self._clear(left, Owner(*codec.decode(record.value)))

    async def unfold(self, items: list[Json], allowance: ReadAllowance | None = None) -> list[Json]:
        """Return the items of a history with its stand-in replaced by the items that still exist.

        Raises:
            TooLarge: they exceed `allowance`.
        """
        if not begins_with_stand_in(items):
            return items
        return [*await self.items(items[0]["conversation"], items[0]["end"], allowance), *items[1:]]

    def _append(self, conversation: Conversation, items: Sequence[Json]) -> ConversationAppend:
        return ConversationAppend(conversation.id, conversation.owner, items, self._clock())

    async def _deleted(self, conversation: Conversation, unchanged: Condition) -> bool:
        """Delete a conversation with its items; return False if it was changed meanwhile."""
        left = f"w/{conversation.id}"
        ops: list[Op] = [Delete(conversation.key), Put(left, codec.encode(conversation.owner.encode()))]
        if not await committed(self._records, ops, [unchanged]):
            return False
        await self._try_clear(left, conversation.owner)
        return True

    async def _head(self, conversation_id: str) -> tuple[Conversation, Condition] | None:
        """Return the conversation, and the condition that it is unchanged."""
        key = f"c/{conversation_id}"
        record = (await self._records.get_many([key])).get(key)
        return (Conversation.decode(conversation_id, record), VersionIs(key, record.version)) if record else None

    async def _lasting_head(self, conversation_id: str) -> tuple[Conversation, Condition] | None:
        """Return what `_head` does, once it is not lost with one server: another one may come to have its version."""
        read = partial(self._head, conversation_id)
        return await read_replicated(self._records, tag_of(conversation_id), read, lambda _: True)

    async def _position(self, conversation: Conversation, item_id: str) -> tuple[int, VersionIs] | None:
        """Return the position of an item, and the condition that it is still there."""
        address = _address(Hasher(conversation.owner, tag_of(conversation.id)), conversation.id, item_id)
        record = (await self._records.get_many([address])).get(address)
        return (int(record.value), VersionIs(address, record.version)) if record else None

    async def _item(self, row: str, allowance: ReadAllowance | None) -> Json | None:
        record = (await self._records.get_many([row])).get(row)
        return (await self._decoder.decode([record.value], allowance))[0] if record else None

    async def _try_clear(self, left: str, owner: Owner) -> None:
        """Run `_clear` after the deletion was committed; `resume` repeats what fails now."""
        try:
            await self._clear(left, owner)
        except ApiError as error:
            logger.warning("could not delete the items of a deleted conversation, will retry: %s", error)

    async def _clear(self, left: str, owner: Owner) -> None:
        """Delete the items of a deleted conversation, and then the row that requests this."""
        conversation_id = left.removeprefix("w/")
        hasher, prefix = Hasher(owner, tag_of(conversation_id)), f"a/{conversation_id}/"
        if isinstance(self._records, Moving):
            await self._records.forget_items(conversation_id)
        while found := await self._records.range(prefix, after_prefix(prefix), limit=_DELETES_PER_COMMIT):
            rows = {address: _row(conversation_id, int(record.value)) for address, record in found}
            ops, _ = await self._gone(as_moved(self._records), hasher, rows)
            await self._records.commit(ops)
        await self._records.commit([Delete(left)])

    async def _gone(
        self, records: Records, hasher: Hasher, rows: Mapping[str, str], *also: str
    ) -> tuple[list[Op], dict[str, Record]]:
        """Return the ops that delete items and the pointers to them.

        Args:
            records: what is read; a pointer that leads to what is at another place leads to no such item.
            rows: the items' rows, by the rows that find their positions.
            also: keys that are read in the same call.

        Returns:
            The ops, and what was read.
        """
        pointers = {address: _pointer_keys(hasher, address, row) for address, row in rows.items()}
        keys = [*also, *(each for of_item in pointers.values() for each in of_item)]
        found = await records.get_many(keys)
        ops: list[Op] = []
        for address, row in rows.items():
            ops += [Delete(row), Delete(address)]
            ops += [
                Delete(each)
                for each in pointers[address]
                if each in found and read_pointer(found[each].value)[0] == row
            ]
        return ops, found


def pointed_by(owner: Owner, conversation_id: str, ids: Mapping[str, str]) -> list[str]:
    """Return the keys of the pointers that may lead to items of a conversation.

    Args:
        ids: the items' ids by row.
    """
    hasher = Hasher(owner, tag_of(conversation_id))
    addresses = {row: _address(hasher, conversation_id, item_id) for row, item_id in ids.items()}
    return [key for row, address in addresses.items() for key in _pointer_keys(hasher, address, row)]


def _fitting(items: Sequence[tuple[Json, int]], max_bytes: int) -> list[Json]:
    """Return the first items, of which each is given with its size, that have at most `max_bytes` together."""
    fit = bisect_right(list(accumulate(size for _, size in items)), max_bytes)
    return [item for item, _ in items[:fit]]


def _row(conversation_id: str, position: int) -> str:
    """Return the key of the item at a position."""
    return f"m/{conversation_id}/{position:08x}"


def _pointers(hasher: Hasher, address: str, row: str) -> list[Ensure | Put]:
    """Return the ops that write the pointers from an item's id to its row.

    A response, or another conversation, may also have the item. So the first pointer is kept if it leads elsewhere, and
    the other one, which only this row has, finds the item when that position is gone. Of what is packed, the first one
    may be where only reading finds it: it is read before, unless the id is new.
    """
    first, further = _pointer_keys(hasher, address, row)
    pointer = f"{row} 0".encode()
    return [Ensure(first, pointer), Put(further, pointer)]


def _pointer_keys(hasher: Hasher, address: str, row: str) -> tuple[str, str]:
    """Return the keys of these pointers, which name the id as the key of its position does."""
    first = _first_pointer(address)
    return first, further_pointer(first, hasher.item(row))


def _first_pointer(address: str) -> str:
    return f"i/{address.rpartition('/')[2]}"


def _address(hasher: Hasher, conversation_id: str, item_id: str) -> str:
    """Return the key of the row that holds the position of the item with this id."""
    return f"a/{conversation_id}/{hasher.item(item_id)}"
