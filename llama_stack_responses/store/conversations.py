"""Conversations and their items.

Unlike a history, which is immutable and belongs to whatever stands on it, a conversation changes, and lives until it is
deleted. So it has its items itself: a row each, at a place that is the number of items that were added before. However
long a conversation is, a turn adds its own rows and rewrites one, an item goes with its row, and a page is a range.

What a response in a conversation was made from begins with a stand-in for what the conversation was then; whoever reads
that history finds those of its items that are still there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Final

from ..core.errors import ApiError, bad_request
from ..core.listing import Order
from ..core.owner import Owner
from ..logs import get_logger
from . import codec
from .hashing import Hasher
from .layout import Json, imported, item_pointer, read_pointer
from .records import Condition, Delete, Op, Put, Record, Records, VersionIs, after_prefix, committed
from .tries import Tries

logger = get_logger(__name__)

_STAND_IN: Final = "conversation"
_BATCH: Final = 200
"""Items that are dropped in one commit."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation without its items.

    Attributes:
        id: `conv_...`.
        owner: who made it.
        created_at: Unix time in seconds.
        metadata: the client's own pairs.
        end: the place that the next item gets: how many were ever added.
    """

    id: str
    owner: Owner
    created_at: int
    metadata: Mapping[str, str]
    end: int = 0

    @property
    def key(self) -> str:
        """The key of its record."""
        return f"c/{self.id}"

    def encode(self) -> bytes:
        """The record's value."""
        kept = {"created_at": self.created_at, "metadata": self.metadata, "end": self.end}
        return codec.encode({"owner": self.owner.encode(), **kept})

    @staticmethod
    def decode(conversation_id: str, record: Record) -> Conversation:
        """The conversation that `encode` wrote."""
        stored = codec.decode(record.value)
        found = {**stored, "id": conversation_id, "owner": Owner(*stored["owner"])}
        return Conversation(**codec.known(Conversation, found))


def stand_in(conversation: Conversation) -> Json:
    """What stands, as the first item of a history, for all that is in the conversation now.

    No two are the same: histories with the same words share their items, and two turns have ids of their own.
    """
    return {"type": _STAND_IN, "conversation": conversation.id, "end": conversation.end, "turn": token_hex(8)}


def begins_with_stand_in(items: Sequence[Json]) -> bool:
    """Whether the items are behind those of a conversation."""
    return bool(items) and items[0]["type"] == _STAND_IN


def without_stand_in(items: Sequence[Json]) -> Sequence[Json]:
    """A history's own items."""
    return items[1:] if begins_with_stand_in(items) else items


class Joining:
    """Items that become the end of a conversation, in a commit that may do more.

    One that is there already, as its id tells, stays where it is. If the conversation is deleted meanwhile, nothing is
    added to it.

    Args:
        conversation_id: the conversation.
        owner: whose it may be; `read` finds out.
        items: each with an id.
    """

    def __init__(self, conversation_id: str, owner: Owner, items: Iterable[Json]) -> None:
        self._id = conversation_id
        self._head = f"c/{conversation_id}"
        self._belong(owner, items)

    def _belong(self, owner: Owner, items: Iterable[Json]) -> None:
        self._hasher = Hasher(owner)
        self._items = {_address(self._hasher, self._id, item["id"]): item for item in items}
        self._keys = [self._head, *self._items]

    async def read(self, records: Records, *also: str) -> dict[str, Record]:
        """What there is of all that `plan` must know, and of other keys, in one round trip, or in two if the
        conversation is another user's.
        """
        known = await records.get_many([*self._keys, *also])
        if self._head in known:
            owner = Conversation.decode(self._id, known[self._head]).owner
            if Hasher(owner).owner != self._hasher.owner:
                self._belong(owner, self._items.values())
                known |= await records.get_many(self._keys)
        return known

    def plan(self, known: Mapping[str, Record]) -> tuple[list[Op], list[Condition]]:
        """What the commit does for it, and on what that depends."""
        if self._head not in known:
            return [], []
        head = known[self._head]
        conversation = Conversation.decode(self._id, head)
        new = {address: item for address, item in self._items.items() if address not in known}
        ops: list[Op] = [Put(self._head, replace(conversation, end=conversation.end + len(new)).encode())]
        for place, (address, item) in enumerate(new.items(), conversation.end):
            row = _row(self._id, place)
            ops += [Put(row, codec.encode(item)), Put(address, str(place).encode())]
            ops.append(Put(*item_pointer(self._hasher, item["id"], row, 0)))
        return ops, [VersionIs(self._head, head.version)]

    def taken(self, known: Mapping[str, Record]) -> str | None:
        """The id of an item that is there already, if any is."""
        return next((item["id"] for address, item in self._items.items() if address in known), None)


class ConversationStore:
    """Keeps conversations until they are deleted.

    Every method raises `ApiError` 503 when the store cannot serve it.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    async def create(self, conversation: Conversation, items: Sequence[Json]) -> None:
        """Stores a new conversation with these items, each of which has an id.

        Raises:
            Conflict: there is one with this id.
        """
        known = {conversation.key: Record(conversation.encode(), 0)}
        ops, _ = Joining(conversation.id, conversation.owner, items).plan(known)
        await self._records.commit(ops, [VersionIs(conversation.key, None)])

    async def bring(self, conversation: Conversation, items: Sequence[Json]) -> bool:
        """Stores a conversation of another server, unless it is there, or was and is deleted; False if so."""
        mark = imported(conversation.id)
        known = {conversation.key: Record(conversation.encode(), 0)}
        ops, _ = Joining(conversation.id, conversation.owner, items).plan(known)
        new = [VersionIs(conversation.key, None), VersionIs(mark.key, None)]
        return await committed(self._records, [*ops, mark], new)

    async def load(self, conversation_id: str) -> Conversation | None:
        """The conversation; None if it is unknown or deleted."""
        found = await self._head(conversation_id)
        return found[0] if found else None

    async def set_metadata(self, conversation_id: str, metadata: Mapping[str, str]) -> Conversation | None:
        """Gives the conversation other metadata; None if it is unknown or deleted."""
        tries = Tries()
        while found := await self._head(conversation_id):
            await tries.another()
            conversation, unchanged = replace(found[0], metadata=metadata), found[1]
            if await committed(self._records, [Put(conversation.key, conversation.encode())], [unchanged]):
                return conversation
        return None

    async def add(self, conversation: Conversation, items: Sequence[Json], *, again: bool = False) -> bool:
        """Makes `items`, each of which has an id, the end of the conversation; False if it is deleted.

        Args:
            again: whether an earlier call may have done so.

        Raises:
            ApiError: 400, if one of them is in the conversation already.
        """
        joining, tries = Joining(conversation.id, conversation.owner, items), Tries()
        while True:
            await tries.another()
            known = await joining.read(self._records)
            if (taken := joining.taken(known)) and not again:
                raise bad_request(f"Item with id '{taken}' is already in this conversation.", "items", "invalid_value")
            ops, conditions = joining.plan(known)
            if not ops or await committed(self._records, ops, conditions):
                return bool(ops)

    async def items(self, conversation_id: str, end: int) -> list[Json]:
        """All items that are there at places before `end`, in their order."""
        rows = await self._records.range(_row(conversation_id, 0), _row(conversation_id, end), limit=end)
        return [codec.decode(record.value) for _, record in rows]

    async def page(
        self, conversation: Conversation, *, limit: int, after: str | None, order: Order
    ) -> tuple[list[Json], bool]:
        """At most `limit` items behind the one with the id `after`, and whether there are more.

        Raises:
            ApiError: 400, if `after` is not in the conversation.
        """
        first, last = 0, conversation.end
        if after is not None:
            found = await self._place(conversation, after)
            if found is None:
                raise bad_request(f"No item with id '{after}' is in this list.", "after", "invalid_value")
            first, last = (first, found[0]) if order == "desc" else (found[0] + 1, last)
        start, end = _row(conversation.id, first), _row(conversation.id, last)
        rows = await self._records.range(start, end, limit=limit + 1, reverse=order == "desc")
        return [codec.decode(record.value) for _, record in rows[:limit]], len(rows) > limit

    async def find(self, conversation: Conversation, item_id: str) -> Json | None:
        """The item with this id; None if it is not in the conversation."""
        found = await self._place(conversation, item_id)
        return await self._item(_row(conversation.id, found[0])) if found else None

    async def remove(self, conversation: Conversation, item_id: str) -> bool:
        """Takes an item out of the conversation; False if it is not there."""
        found = await self._place(conversation, item_id)
        if found is None:
            return False
        place, unchanged = found
        gone = await self._gone(conversation.owner, conversation.id, {_row(conversation.id, place): item_id})
        return await committed(self._records, gone, [unchanged])

    async def delete(self, conversation_id: str) -> bool:
        """Deletes the conversation with all its items; False if it is not there."""
        tries = Tries()
        while found := await self._head(conversation_id):
            await tries.another()
            conversation, unchanged = found
            left = f"w/{conversation_id}"
            ops: list[Op] = [Delete(conversation.key), Put(left, codec.encode(conversation.owner.encode()))]
            if await committed(self._records, ops, [unchanged]):
                await self._try_clear(left, conversation.owner)
                return True
        return False

    async def resume(self, limit: int) -> None:
        """Does what is left of deletions that were interrupted, at most `limit` of them."""
        for left, record in await self._records.range("w/", after_prefix("w/"), limit=limit):
            await self._clear(left, Owner(*codec.decode(record.value)))

    async def unfold(self, items: list[Json]) -> list[Json]:
        """The items of a history, with what is still there of what its stand-in stands for."""
        if not begins_with_stand_in(items):
            return items
        return [*await self.items(items[0]["conversation"], items[0]["end"]), *items[1:]]

    async def _head(self, conversation_id: str) -> tuple[Conversation, Condition] | None:
        """The conversation, and what holds for as long as it is this one."""
        key = f"c/{conversation_id}"
        record = (await self._records.get_many([key])).get(key)
        return (Conversation.decode(conversation_id, record), VersionIs(key, record.version)) if record else None

    async def _place(self, conversation: Conversation, item_id: str) -> tuple[int, Condition] | None:
        """Where an item is, and what holds for as long as it is there."""
        address = _address(Hasher(conversation.owner), conversation.id, item_id)
        record = (await self._records.get_many([address])).get(address)
        return (int(record.value), VersionIs(address, record.version)) if record else None

    async def _item(self, row: str) -> Json | None:
        record = (await self._records.get_many([row])).get(row)
        return codec.decode(record.value) if record else None

    async def _try_clear(self, left: str, owner: Owner) -> None:
        """As `_clear`, after a delete that is made: what cannot be done now is left to `resume`."""
        try:
            await self._clear(left, owner)
        except ApiError as error:
            logger.warning("the items of a deleted conversation are dropped later: %s", error)

    async def _clear(self, left: str, owner: Owner) -> None:
        """Drops the items of a deleted conversation, and then the row that says that they are to be dropped."""
        conversation_id = left.removeprefix("w/")
        prefix = f"m/{conversation_id}/"
        while rows := await self._records.range(prefix, after_prefix(prefix), limit=_BATCH):
            ids = {row: codec.decode(record.value)["id"] for row, record in rows}
            await self._records.commit(await self._gone(owner, conversation_id, ids))
        await self._records.commit([Delete(left)])

    async def _gone(self, owner: Owner, conversation_id: str, ids: Mapping[str, str]) -> list[Op]:
        """What removes items, given their ids by row, and the pointers that lead there."""
        hasher = Hasher(owner)
        pointers = {row: item_pointer(hasher, item_id, row, 0)[0] for row, item_id in ids.items()}
        found = await self._records.get_many(list(pointers.values()))
        ops: list[Op] = []
        for row, pointer in pointers.items():
            ops += [Delete(row), Delete(_address(hasher, conversation_id, ids[row]))]
            if pointer in found and read_pointer(found[pointer].value)[0] == row:
                ops.append(Delete(pointer))
        return ops


def _row(conversation_id: str, place: int) -> str:
    """The key of the item at a place."""
    return f"m/{conversation_id}/{place:08x}"


def _address(hasher: Hasher, conversation_id: str, item_id: str) -> str:
    """The key of what says at which place the item with this id is."""
    return f"a/{conversation_id}/{hasher.item(item_id)}"
