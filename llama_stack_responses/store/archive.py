"""Responses and the histories that they stand on.

What conversations have in common is kept once, and goes with the last response that stands on it, never before.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import batched
from typing import Final

from ..core.errors import bad_request
from ..core.exchanges import with_exchanges, without_exchange
from ..core.listing import Order
from ..core.owner import Owner
from ..core.stream.calls import FORMS
from ..core.stream.response import ADDED_FIELDS
from ..core.stream.transcript import Mark
from ..logs import get_logger
from . import codec
from .conversations import ConversationStore, Joining, without_stand_in
from .hashing import Hasher
from .layout import BUCKET, Entry, Json, imported, listing, read_pointer, second, split_input, unsettled
from .nodes import Node, decode, read_chain
from .reclaim import Reclaim
from .records import Condition, Conflict, Delete, Empty, Op, Record, Records, VersionIs, after_prefix, committed
from .saving import Saving
from .tries import Tries
from .vouched import Vouched, find_vouched

logger = get_logger(__name__)

type Items = list[Json]  # the class below has a method called list

_SCAN: Final = 100

_MADE: Final = (FORMS.keys() | {"reasoning"}) - {"shell_call_output", "tool_search_output"}
"""The types of items that a model makes, beside its messages."""

_JOINS: Final = ("completed", "incomplete")
"""The statuses of responses whose input and output become part of their conversation."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it was saved.

    Attributes:
        response: the response object.
        owner: who made it.
        history: the name of the history after its output; None if that is empty.
        input: the name of the history after its input.
        version: grows with each save of this response.
        transcript: how its stream was cut into events; None if nobody took that down.
    """

    response: Json
    owner: Owner
    history: str | None
    input: str | None
    version: int
    transcript: Sequence[Mark] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list, and whether there is more behind it."""

    items: list[StoredResponse]
    has_more: bool


class Archive:
    """Keeps responses, each part of a conversation once, and forgets them when their time is up.

    Args:
        records: where everything goes.
        retention: seconds from a response's creation after which it is gone; None keeps it until it is deleted.
        clock: seconds since the epoch.

    Every method raises `ApiError` 503 when the store cannot serve it.
    """

    def __init__(
        self, records: Records, *, retention: float | None = 30 * 86_400.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._records = records
        self._retention = retention
        self._clock = clock
        self._reclaim = Reclaim(records)
        self.conversations = ConversationStore(records)
        """The conversations that responses are in."""

    async def save(
        self,
        response: Json,
        *,
        owner: Owner,
        base: str | None,
        input_items: Sequence[Json],
        base_items: Sequence[Json] = (),
        version: int | None = None,
        transcript: Sequence[Mark] | None = None,
        exchanges: Mapping[str, Json] | None = None,
        beside: Sequence[Op] = (),
        conditions: Sequence[Condition] = (),
    ) -> int:
        """Store a response, or store it anew, in one commit.

        What is stored already, be it the tools or a history that the client sent again, is referred to. If the response
        is in a conversation and has come to an end there, its own input and its output become the conversation's end
        in the same commit: once, however often it is stored.

        Args:
            response: the response object; its `output` items continue the history.
            owner: who made it.
            base: the name of the history that it continues.
            input_items: the request's own items, behind those of `base`.
            base_items: the items of `base`. Should it be gone by now, because somebody deleted the response that it
                belonged to, they are stored again; without them, this history would begin with `input_items`.
            beside, conditions: what else the commit does, and on what else it depends.
            version: what the stored response's version must still be; None for whatever it is.
            transcript: how the response's stream was cut into events.
            exchanges: what the model called and was told, by the id of the output item that shows it. It is kept in
                the history, as the item's `exchange`, and nowhere else.

        Returns:
            The version that was stored.

        Raises:
            Conflict: the stored response does not have `version`, or is gone; or one of `conditions` does not hold.
        """
        exchanges = exchanges or {}
        joining = await self._joining(response, owner, base, input_items, exchanges)
        saving = Saving(response, owner, base, input_items, base_items, transcript, exchanges, joining)
        tries = Tries()
        while True:
            await tries.another()
            plan = saving.plan(await saving.read(self._records), self._clock(), version)
            try:
                await self._records.commit([*plan.ops, *beside], [*plan.conditions, *conditions])
            except Conflict as conflict:
                if any(condition in conditions for condition in conflict.failed):
                    raise
                continue
            await self._reclaim.try_run(plan.released, owner)
            return plan.version

    async def bring(
        self,
        response: Json,
        *,
        owner: Owner,
        base: str | None,
        input_items: Sequence[Json],
        conditions: Sequence[Condition] = (),
    ) -> bool:
        """Store a response of another server, unless it is there, or was and is deleted; False if so.

        Args:
            owner, base, input_items, conditions: as `save` takes them.

        Raises:
            Conflict: one of `conditions` does not hold.
        """
        mark = imported(response["id"])
        new = [VersionIs(mark.key, None), VersionIs(f"r/{response['id']}", None)]
        try:
            await self.save(
                response,
                owner=owner,
                base=base,
                input_items=input_items,
                beside=[mark],
                conditions=[*new, *conditions],
            )
        except Conflict as conflict:
            if any(condition in new for condition in conflict.failed):
                return False
            raise
        return True

    async def brought(self, response_ids: Sequence[str]) -> set[str]:
        """Those of the ids whose responses are there, or that an import brought."""
        keys = {key: each for each in response_ids for key in (f"r/{each}", imported(each).key)}
        return {keys[key] for key in await self._records.get_many(list(keys))}

    async def join(
        self, response: Json, *, owner: Owner, input_items: Sequence[Json], exchanges: Mapping[str, Json]
    ) -> None:
        """Have the input and the output of a response that is not stored become the end of its conversation.

        Args:
            owner, input_items, exchanges: as `save` takes them.
        """
        joining = await self._joining(response, owner, None, input_items, exchanges)
        if joining is None:
            return
        tries = Tries()
        while True:
            await tries.another()
            ops, conditions = joining.plan(await joining.read(self._records))
            if not ops or await committed(self._records, ops, conditions):
                return

    async def load(self, response_id: str) -> StoredResponse | None:
        """The response; None if it is unknown, deleted or past its time."""
        return next(iter(await self._load([response_id])), None)

    async def under_way(self, response_id: str) -> Vouched | None:
        """The foreground response that is made by any server of the store; None if there is none."""
        return await find_vouched(self._records, response_id) if self._records.transactional else None

    async def entry(self, response_id: str) -> Entry | None:
        """The response's record alone, for those who do not look at its content; None as from `load`."""
        return next((entry for entry, _ in await self._entries([response_id])), None)

    async def list(self, owner: Owner, *, limit: int, after: str | None, order: Order, model: str | None) -> Page:
        """The owner's responses by time of creation: at most `limit`, behind the response `after`, of one `model`.

        Raises:
            ApiError: 400, if `after` is not one of them.
        """
        start, end = await self._bounds(owner, after, order)
        size = limit + 1 if model is None else max(limit + 1, _SCAN)
        found: list[StoredResponse] = []
        while True:
            rows = await self._records.range(start, end, limit=size, reverse=order == "desc")
            loaded = await self._load([key.rpartition("/")[2] for key, _ in rows])
            found += [stored for stored in loaded if model is None or stored.response["model"] == model]
            if len(found) > limit or len(rows) < size:
                return Page(found[:limit], len(found) > limit)
            start, end = (start, rows[-1][0]) if order == "desc" else (rows[-1][0] + "\0", end)

    async def own_inputs(self, stored: Sequence[StoredResponse]) -> Sequence[Items]:
        """What stands in each response's history behind what a model said before, in two round trips at most.

        Nothing where that is gone.
        """
        ends = [split_input(each.input) if each.input else ("", 0) for each in stored]
        nodes = await self._nodes(node for node, _ in ends)
        # The input is in front of the output in one node, or in one of its own that the output's stands on.
        apart = [_parent(nodes.get(node), behind) for node, behind in ends]
        nodes |= await self._nodes(filter(None, apart))
        holders = [
            (parent, 0) if parent else (node, behind) for (node, behind), parent in zip(ends, apart, strict=True)
        ]
        return [_given(nodes.get(name), behind) for name, behind in holders]

    async def _nodes(self, names: Iterable[str]) -> dict[str, Node]:
        """Those of the nodes that are there, by name."""
        records = await self._records.get_many(list({f"n/{name}" for name in names if name}))
        return {key.removeprefix("n/"): decode(record.value) for key, record in records.items()}

    async def history(self, name: str | None) -> Items:
        """All items from the beginning to the history called `name`, oldest first.

        A history of n nodes, of which each response makes at most two, takes at most ceil(log4(n)) + 1 round trips, and
        one more if it begins with a conversation.

        Raises:
            ApiError: 400 `previous_response_not_found`, if part of it is gone.
        """
        items = await self._kept(name)
        if items is None:
            raise bad_request(
                "The history of the previous response is no longer stored.",
                "previous_response_id",
                "previous_response_not_found",
            )
        return await self.conversations.unfold(items)

    async def _kept(self, name: str | None) -> Items | None:
        """The items of a history as it is kept; None if part of it is gone."""
        if name is None:
            return []
        node, behind = split_input(name)
        chain = await read_chain(self._records, node)
        if chain is None:
            return None
        items = [item for _, node in chain for item in node.items]
        return items[: len(items) - behind]

    async def find_items(self, owner: Owner, item_ids: Sequence[str]) -> AsyncIterator[tuple[str, Json]]:
        """Those of the items with these ids that are stored for this owner, each with its id, in any order.

        Each record is read and decoded once, however many of the items are in it, and only when it is asked for.
        """
        hasher = Hasher(owner)
        for ids in batched(item_ids, _SCAN):
            rows = {f"i/{hasher.item(item_id)}": item_id for item_id in ids}
            places: dict[str, list[tuple[str, int]]] = {}
            for row, pointer in (await self._records.get_many(list(rows))).items():
                key, index = read_pointer(pointer.value)
                places.setdefault(key, []).append((rows[row], index))
            for key, named in places.items():
                for found in await self._items_at(key, named):
                    yield found

    async def _items_at(self, key: str, named: Sequence[tuple[str, int]]) -> Sequence[tuple[str, Json]]:
        """Those of the items with these ids and indices that are in one record."""
        record = (await self._records.get_many([key])).get(key)
        items = _items(key, record) if record else ()
        return [(item_id, items[index]) for item_id, index in named if index < len(items)]

    async def delete(
        self, response_id: str, *, beside: Sequence[Op] = (), conditions: Sequence[Condition] = ()
    ) -> bool:
        """Forget a response, and all content that nothing else stands on; False if it is not there.

        Args:
            beside, conditions: what else the commit does, and on what else it depends.

        Raises:
            Conflict: one of `conditions` does not hold.
        """
        key = f"r/{response_id}"
        tries = Tries()
        while True:
            await tries.another()
            record = (await self._records.get_many([key])).get(key)
            if record is None:
                return False
            entry = Entry.decode(record)
            released = entry.references().values()
            ops: Sequence[Op] = [
                Delete(key),
                *map(Delete, entry.rows()),
                *(unsettled(content, entry.owner) for content in released),
            ]
            try:
                await self._records.commit([*ops, *beside], [VersionIs(key, record.version), *conditions])
            except Conflict as conflict:
                if any(condition in conditions for condition in conflict.failed):
                    raise
                continue
            await self._reclaim.try_run(released, entry.owner)
            return True

    async def sweep(self, *, limit: int = 100) -> int:
        """Delete at most `limit` responses whose time is up, and finish deletions that were interrupted.

        Space that became free goes back to the disk.

        Returns:
            How many responses it deleted; `limit` says that there may be more.
        """
        await self._reclaim.resume(limit)
        await self.conversations.resume(limit)
        oldest = self._oldest()
        deleted = 0
        for row, _ in await self._records.range("x/", after_prefix(f"x/{oldest[:BUCKET]}"), limit=limit):
            _, digits, of = row.split("/")
            start = f"l/{of}/{digits}"
            end = min(after_prefix(start), f"l/{of}/{oldest}")
            expired = await self._records.range(start, end, limit=limit - deleted)
            for listed, _ in expired:
                await self._forget(listed)
            deleted += len(expired)
            if digits < oldest[:BUCKET]:
                await self._drop_bucket(row, start)
        # By the store's clock, on which leases are: by this server's, others might lose theirs.
        while await self._records.sweep(await self._records.now()):
            pass
        return deleted

    async def close(self) -> None:
        """Give back what the store holds."""
        await self._records.close()

    async def _joining(
        self,
        response: Json,
        owner: Owner,
        base: str | None,
        input_items: Sequence[Json],
        exchanges: Mapping[str, Json],
    ) -> Joining | None:
        """What the response adds to its conversation; None if it does not."""
        if response["conversation"] is None or response["status"] not in _JOINS:
            return None
        own = without_stand_in([*(await self._kept(base) or []), *input_items])
        items = [*own, *with_exchanges(response["output"], exchanges)]
        return Joining(response["conversation"]["id"], owner, items)

    def _oldest(self) -> str:
        """The least order of a response whose time is not up."""
        return second(0 if self._retention is None else self._clock() - self._retention)

    async def _forget(self, listed: str) -> None:
        response_id = listed.rpartition("/")[2]
        try:
            found = await self.delete(response_id)
        except codec.UnreadableError as error:
            logger.error("an expired response is dropped, and what it stood on stays: %s: %s", response_id, error)
            await self._records.commit([Delete(f"r/{response_id}"), Delete(listed)])
            return
        if not found:
            # A bounded store has dropped the response before its time, and not this row.
            await self._records.commit([Delete(listed)])

    async def _drop_bucket(self, row: str, prefix: str) -> None:
        with suppress(Conflict):
            await self._records.commit([Delete(row)], [Empty(prefix)])

    async def _bounds(self, owner: Owner, after: str | None, order: Order) -> tuple[str, str]:
        """The keys between which `list` looks."""
        of = Hasher(owner).owner
        start, end = f"l/{of}/{self._oldest()}", after_prefix(f"l/{of}/")
        if after is None:
            return start, end
        record = (await self._records.get_many([f"r/{after}"])).get(f"r/{after}")
        entry = Entry.decode(record) if record else None
        if entry is None or Hasher(entry.owner).owner != of:
            raise bad_request(f"No response with id '{after}' is in this list.", "after", "invalid_value")
        key = listing(of, entry.order, after)
        return (start, key) if order == "desc" else (max(start, key + "\0"), end)

    async def _load(self, response_ids: Sequence[str]) -> Sequence[StoredResponse]:
        """Those of the responses that are there, in this order, in two round trips."""
        live = await self._entries(response_ids)
        content = await self._records.get_many(list({key for entry, _ in live for key in _content_of(entry)}))
        return [
            StoredResponse(
                _response(entry, content), entry.owner, entry.history, entry.input, version, entry.transcript
            )
            for entry, version in live
            if content.keys() >= _content_of(entry)
        ]

    async def _entries(self, response_ids: Sequence[str]) -> Sequence[tuple[Entry, int]]:
        """The records of those that are there, each with its version."""
        keys = [f"r/{response_id}" for response_id in response_ids]
        records = await self._records.get_many(keys)
        found = [(Entry.decode(records[key]), records[key].version) for key in keys if key in records]
        oldest = self._oldest()
        return [(entry, version) for entry, version in found if entry.order >= oldest]


def _parent(node: Node | None, outputs: int) -> str | None:
    """The node that holds the input, where this one holds nothing but the output."""
    return node.parent if node and len(node.items) <= outputs else None


def _given(node: Node | None, outputs: int) -> Items:
    """The items in front of the output, behind the last one that a model made."""
    items = list(without_stand_in(node.items[: len(node.items) - outputs])) if node else []
    made = [index for index, item in enumerate(items) if item.get("role") == "assistant" or item["type"] in _MADE]
    return items[made[-1] + 1 :] if made else items


def _content_of(entry: Entry) -> set[str]:
    """The keys of what is kept outside of the response's record."""
    keys = {f"b/{name}" for name in entry.fields.values()}
    return keys if entry.response["output"] or not entry.outputs else keys | {f"n/{entry.history}"}


def _response(entry: Entry, content: Mapping[str, Record]) -> Json:
    fields = {field: codec.decode(content[f"b/{name}"].value) for field, name in entry.fields.items()}
    if f"n/{entry.history}" in _content_of(entry):
        items = decode(content[f"n/{entry.history}"].value).items
        fields["output"] = list(items[-entry.outputs :])
    response = {**entry.response, **fields}
    for field, value in ADDED_FIELDS.items():
        response.setdefault(field, value)
    return response | {"output": [without_exchange(item) for item in response["output"]]}


def _items(key: str, record: Record) -> Sequence[Json]:
    """The items that lie under a key that a pointer holds."""
    match key[:2]:
        case "r/":
            output: Sequence[Json] = Entry.decode(record).response["output"]
            return output
        case "m/":
            return [codec.decode(record.value)]
    return decode(record.value).items
