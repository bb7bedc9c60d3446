"""Store responses and their histories.

Histories that conversations share are stored once. They are deleted with the last response that depends on them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import batched, zip_longest
from typing import Any, Final

from ..core.errors import ApiError, bad_request
from ..core.exchanges import with_exchanges, without_exchange
from ..core.ids import seeded
from ..core.listing import Order
from ..core.owner import Owner
from ..core.stream.response import ADDED_FIELDS
from ..core.stream.transcript import Mark
from ..core.types import Json
from ..intervals import DEFAULT
from ..logs import get_logger
from . import codec, own_ids
from .codec import TooLarge
from .conversations import ConversationAppend, ConversationStore, without_stand_in
from .decoder import Decoder
from .hashing import Hasher
from .layout import BUCKET, Entry, further_pointers, imported, listing, read_pointer, second, split_name, unsettled
from .list_rows import Row, first_words, list_row, read_list_row
from .listing import Listing
from .nodes import read_chain
from .pages import SharedContent, first_decoded, own_inputs
from .reading import PAGE_BYTES, ReadAllowance, computed
from .recent import RecentHistory
from .reclaim import Reclaim
from .records import Condition, Conflict, Delete, Empty, Op, Record, Records, VersionIs, after_prefix, committed
from .retry import Retry
from .running_response import RunningResponse, find_running
from .saving import Recording, Saving

logger = get_logger(__name__)

type Items = list[Json]  # an alias, because the class below has a method called `list`

_SCAN: Final = 100

_FURTHER: Final = 8
"""Further pointers of an item that are read at a time; nearly always the first leads to it."""

_RECENT_BYTES: Final = 128 * 2**20

_BLOCK: Final = 500
"""Rows that one read of a filtered list takes."""

_SCANNED: Final = 10_000
"""Rows after which the page of a filtered list ends."""

_JOINS: Final = ("completed", "incomplete")
"""Statuses with which a response's input and output are added to its conversation."""


NOTHING_RECORDED: Final = Recording()


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it was saved.

    Attributes:
        response: the response object.
        owner: the owner of the response.
        history: the name of the history after its output; None if that is empty.
        input: the name of the history after its input.
        version: the version of the record; it grows with each save.
        transcript: how its stream was cut into events; None if this was not recorded.
        size: the size of the records that hold it, as `codec.size` counts.
        timing: when its rounds, tool calls and events came; None if this was not recorded.
        recorded: the number of its recorded chat requests.
    """

    response: Json
    owner: Owner
    history: str | None
    input: str | None
    version: int
    transcript: Sequence[Mark] | None = None
    size: int = 0
    timing: Json | None = None
    recorded: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list.

    Attributes:
        items: the responses.
        has_more: whether more responses may follow.
        last: the id of the last response that was looked at, if the page ended at the limit of a search.
    """

    items: list[StoredResponse]
    has_more: bool
    last: str | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """A response's record, its version, and its size as `codec.size` counts."""

    entry: Entry
    version: int
    size: int


class Archive:
    """Stores responses, each shared part of a history once, and deletes them when they expire.

    Args:
        records: the store.
        retention: seconds from a response's creation until it expires; None keeps it until it is deleted.
        clock: returns seconds since the epoch.
        page_bytes: a page of a list ends once its responses reach this size.
        recent_bytes: the most that is read of a history whose oldest turns may be left out.
        scan_rows: a page of a filtered list ends after this number of rows.
        scan_seconds: a page of a filtered list ends after this time.
        decoder: decodes the stored values.

    Every method raises `ApiError` 503 when the store is unavailable.
    """

    def __init__(
        self,
        records: Records,
        *,
        retention: float | None = 30 * 86_400.0,
        clock: Callable[[], float] = time.time,
        page_bytes: int = PAGE_BYTES,
        recent_bytes: int = _RECENT_BYTES,
        scan_rows: int = _SCANNED,
        scan_seconds: float = DEFAULT.list_scan_seconds,
        decoder: Decoder | None = None,
    ) -> None:
        self._scan_rows = scan_rows
        self._scan_seconds = scan_seconds
        self._records = records
        self.decoder = decoder = decoder or Decoder()
        self._retention = retention
        self._clock = clock
        self._page_bytes = page_bytes
        self._recent_bytes = recent_bytes
        self._reclaim = Reclaim(records, decoder, page_bytes)
        self.conversations = ConversationStore(records, decoder)
        """The store of the conversations."""
        self._recent = RecentHistory(records, decoder, self.conversations)
        self.listing = Listing(records, self._oldest, self._rows_of)
        """The lists of owners, without the responses themselves."""

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
        recording: Recording = NOTHING_RECORDED,
        extra_ops: Sequence[Op] = (),
        conditions: Sequence[Condition] = (),
    ) -> int:
        """Store a response, or replace the stored one, in one commit.

        Content that is already stored (tools, or a history that the client sent again) is referenced, not stored again.
        If the response has ended and belongs to a conversation, the same commit appends its own input and its output to
        the conversation. This happens once, however often the response is saved.

        Args:
            response: the response object; its `output` items continue the history.
            owner: the owner of the response.
            base: the name of the history that it continues.
            input_items: the request's own items, after those of `base`.
            base_items: the items of `base`. They are stored again if `base` was deleted meanwhile, together with the
                response that it belonged to. Without them, the history would begin with `input_items`.
            extra_ops, conditions: further ops and conditions of the commit.
            version: the version that the stored response must have; None accepts any.
            transcript: how the response's stream was cut into events.
            exchanges: the calls that the model made and their results, by the id of the output item that shows them.
                They are stored only in the history, as the item's `exchange`.
            recording: the record of its course.

        Returns:
            The version that was stored.

        Raises:
            Conflict: the stored response does not have `version`, or is gone; or one of `conditions` does not hold.
        """
        exchanges = exchanges or {}
        append = await self._joining(response, owner, base, input_items, exchanges)
        new = (input_items, response)
        saving = await computed(
            lambda: Saving(response, owner, base, input_items, base_items, transcript, exchanges, append, recording),
            *new,
        )
        retry = Retry()
        while True:
            await retry.wait()
            known = await saving.read(self._records, self.decoder)
            plan = await computed(partial(saving.plan, known, self._clock(), version), *new)
            try:
                await self._records.commit([*plan.ops, *extra_ops], [*plan.conditions, *conditions])
            except Conflict as conflict:
                if any(condition in conditions for condition in conflict.failed):
                    raise
                continue
            await self._reclaim.try_run(plan.released, owner)
            return plan.version

    async def import_response(
        self,
        response: Json,
        *,
        owner: Owner,
        base: str | None,
        input_items: Sequence[Json],
        conditions: Sequence[Condition] = (),
    ) -> bool:
        """Store a response of another server.

        Args:
            owner, base, input_items, conditions: as for `save`.

        Returns:
            False if the response is already stored, or was imported before and deleted.

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
                extra_ops=[mark],
                conditions=[*new, *conditions],
            )
        except Conflict as conflict:
            if any(condition in new for condition in conflict.failed):
                return False
            raise
        return True

    async def stored_or_imported(self, response_ids: Sequence[str]) -> set[str]:
        """Return the ids whose responses are stored or were imported before."""
        keys = {key: each for each in response_ids for key in (f"r/{each}", imported(each).key)}
        return {keys[key] for key in await self._records.get_many(list(keys))}

    async def join(
        self, response: Json, *, owner: Owner, input_items: Sequence[Json], exchanges: Mapping[str, Json]
    ) -> None:
        """Append the input and the output of a response that is not stored to its conversation.

        Args:
            owner, input_items, exchanges: as for `save`.
        """
        append = await self._joining(response, owner, None, input_items, exchanges)
        if append is None:
            return
        retry = Retry()
        while True:
            await retry.wait()
            known = await append.read(self._records)
            ops, conditions = await computed(partial(append.plan, known), input_items, response["output"])
            if not ops or await committed(self._records, ops, conditions):
                return

    async def load(self, response_id: str, hold: Callable[[int], object] | None = None) -> StoredResponse | None:
        """Return the response; None if it is unknown, deleted or expired.

        Args:
            hold: called with the size of the response; it may raise.
        """
        found, _ = await self._entries([response_id])
        for stored in (await self._page(found, 1)).items:
            if hold:
                hold(stored.size)
            return stored
        return None

    async def _rows_of(self, response_ids: Sequence[str]) -> dict[str, bytes]:
        """Return the values of the list's rows of these responses, as far as these are stored."""
        rows: dict[str, bytes] = {}
        while response_ids:
            found, seen = await self._entries(response_ids)
            page = await self._page(found, len(found))
            inputs = await self.own_inputs(page.items)
            for stored, items in zip_longest(page.items, inputs):
                rows[stored.response["id"]] = list_row(stored.response, first_words(items or ()), stored.timing)
            if page.has_more:
                seen = response_ids.index(page.items[-1].response["id"]) + 1
            response_ids = response_ids[seen:]
        return rows

    @property
    def transactional(self) -> bool:
        """Whether the store is transactional."""
        return self._records.transactional

    async def now(self) -> float:
        """Return the time of the store's clock, in seconds since the epoch."""
        return await self._records.now()

    async def summaries(self, response_ids: Sequence[str]) -> dict[str, Row]:
        """Return the list rows of these responses, by id, made from their records."""
        rows = await self._rows_of(response_ids)
        return {each: read_list_row(each, codec.decode(row), 0) for each, row in rows.items()}

    async def read(self, keys: Sequence[str], most: int) -> dict[str, Record]:
        """Return the records of these keys, of `most` bytes and one more at most."""
        return await self._records.get_many(keys, most=most)

    async def running(self, response_id: str) -> RunningResponse | None:
        """Return the foreground response that any server of the store is running; None if there is none."""
        return await find_running(self._records, self.decoder, response_id) if self._records.transactional else None

    async def entry(self, response_id: str) -> Entry | None:
        """Return the response's record without content that is stored elsewhere; None as from `load`."""
        found = await self.entry_version(response_id)
        return found[0] if found else None

    async def entry_version(self, response_id: str) -> tuple[Entry, int] | None:
        """Return what `entry` returns, and the version of the record."""
        found, _ = await self._entries([response_id])
        return (found[0].entry, found[0].version) if found else None

    async def list(
        self,
        owner: Owner,
        *,
        limit: int,
        after: str | None,
        order: Order,
        model: str | None,
        hold: Callable[[int], object] | None = None,
    ) -> Page:
        """Return at most `limit` of the owner's responses after the response `after`, by time of creation.

        Args:
            model: return only responses of this model. The page then ends at a limit of rows and of time, perhaps
                without any response.
            hold: called with the bytes of what is read, before it is decoded; it may raise.

        Raises:
            ApiError: 400, if `after` is not one of the owner's responses.
        """
        start, end = await self._bounds(owner, after, order)
        size = limit + 1 if model is None else min(limit + 1, self._scan_rows)
        found: list[_Found] = []
        scanned, until = 0, time.monotonic() + self._scan_seconds
        while True:
            rows = await self._records.range(start, end, limit=size, reverse=order == "desc")
            ids = await self._candidates(rows, model)
            last = None
            while ids and not self._is_enough(found, limit):
                some, seen = await self._entries(ids[: limit + 1 - len(found)], hold)
                found += [each for each in some if model is None or each.entry.response["model"] == model]
                last, ids = ids[seen - 1], ids[seen:]
                if model is not None and time.monotonic() >= until:
                    break
            if self._is_enough(found, limit) or (len(rows) < size and not ids):
                return await self._page(found, limit, hold)
            scanned += len(rows)
            if model is not None and (scanned >= self._scan_rows or time.monotonic() >= until):
                page = await self._page(found, limit, hold)
                last = last if ids else rows[-1][0].rpartition("/")[2]
                return page if page.has_more else Page(page.items, has_more=True, last=last)
            start, end = (start, rows[-1][0]) if order == "desc" else (rows[-1][0] + "\0", end)
            if model is not None:
                # The first rows often suffice. Where they do not, larger blocks save round trips.
                size = min(2 * size, _BLOCK, self._scan_rows - scanned)

    async def _candidates(self, rows: Sequence[tuple[str, Record]], model: str | None) -> Sequence[str]:
        """Return the ids of the responses whose rows do not show another model. Earlier versions wrote empty rows."""
        if model is not None:
            values = await self.decoder.decode([record.value for _, record in rows if record.value])
            shown = iter(values)
            rows = [row for row in rows if not row[1].value or next(shown).get("model", "") == model]
        return [key.rpartition("/")[2] for key, _ in rows]

    def _is_enough(self, found: Sequence[_Found], limit: int) -> bool:
        """Return whether the responses fill a page and more."""
        return len(found) > limit or sum(each.size for each in found[:-1]) >= self._page_bytes

    async def _page(self, found: Sequence[_Found], limit: int, hold: Callable[[int], object] | None = None) -> Page:
        """Return a page: the first of the responses, until they reach its size limit."""
        shared, size = SharedContent(self._records, self.decoder, self._page_bytes, hold), 0
        items: list[StoredResponse] = []
        for number, each in enumerate(found[:limit]):
            if size >= self._page_bytes:
                return Page(items, has_more=True)
            ahead = (key for later in found[number:limit] for key in _content_of(later.entry))
            content = await shared.get(_content_of(each.entry), ahead)
            size_of_it = each.size + sum(of_it for _, _, of_it in content.values())
            size += size_of_it
            items += _stored(each, content, size_of_it)
        return Page(items, len(found) > limit)

    async def own_inputs(
        self, stored: Sequence[StoredResponse], hold: Callable[[int], object] | None = None
    ) -> Sequence[Items]:
        """Return each response's input items that follow the last item that a model made, in at most two round trips.

        The list is empty if these items are no longer stored. The answer ends once the inputs reach the
        size of a page.

        Args:
            hold: as for `list`.
        """
        shared = SharedContent(self._records, self.decoder, self._page_bytes, hold)
        return await own_inputs(shared, [each.input for each in stored], self._page_bytes)

    async def history(self, name: str | None, allowance: ReadAllowance | None = None) -> Items:
        """Return all items of the history called `name`, oldest first.

        Each response adds at most two nodes. A history of n nodes takes at most ceil(log4(n)) + 1 round trips, and one
        more if it begins with a conversation.

        Raises:
            ApiError: 400 `previous_response_not_found`, if part of it is gone.
            TooLarge: it exceeds `allowance`.
        """
        items = await self._kept(name, allowance)
        if items is None:
            raise _history_gone()
        return await self.conversations.unfold(items, allowance)

    async def recent(self, name: str | None, allowance: ReadAllowance | None = None) -> Items:
        """Return what `history` returns; if that exceeds `allowance`, its instructions and newest turns that do not.

        Args:
            allowance: has a limit; None stands for `recent_bytes`.

        Raises:
            ApiError: as from `history`.
            TooLarge: not even the newest turn is within the limit.
        """
        allowance = allowance or ReadAllowance(self._recent_bytes)
        left = allowance.left
        try:
            return await self.history(name, allowance)
        except TooLarge:
            allowance.left = left
        items = await self._recent.of_history(name, allowance) if name else []
        if items is None:
            raise _history_gone()
        return items

    async def recent_of_conversation(self, conversation_id: str, end: int, allowance: ReadAllowance) -> Items:
        """Return the items of a conversation at places before `end`, as `recent` returns those of a history."""
        left = allowance.left
        try:
            return await self.conversations.items(conversation_id, end, allowance)
        except TooLarge:
            allowance.left = left
        return await self._recent.of_conversation(conversation_id, end, allowance)

    async def _kept(self, name: str | None, allowance: ReadAllowance | None = None) -> Items | None:
        """Return the items of a history as they are stored; None if part of it is gone."""
        if name is None:
            return []
        end, behind, ids = split_name(name)
        # The history is read first: most have no separate ids.
        chain = await read_chain(self._records, self.decoder, end, allowance)
        beside = await read_chain(self._records, self.decoder, ids, allowance) if ids else ()
        if chain is None or beside is None:
            return None
        items = [item for _, node in chain for item in node.items]
        return own_ids.with_own_ids(items[: len(items) - behind], [node for _, node in beside])

    async def find_items(
        self, owner: Owner, item_ids: Sequence[str], allowance: ReadAllowance | None = None
    ) -> AsyncIterator[tuple[str, Json]]:
        """Yield the owner's stored items that have these ids, each with its id, in any order.

        Each record is read and decoded once, however many of the items it holds, and only when the iteration reaches
        it. If an item is not stored, some of the others may be left out.

        Raises:
            TooLarge: the records that hold them exceed `allowance`.
        """
        allowance = allowance or ReadAllowance()
        hasher = Hasher(owner)
        for ids in batched(item_ids, _SCAN):
            rows = {item_id: _pointers_of(hasher, item_id) for item_id in ids}
            pointers = await self._records.get_many([row for of_item in rows.values() for row in of_item])
            places: dict[str, list[tuple[str, int]]] = {}
            for item_id, of_item in rows.items():
                if row := next(filter(pointers.__contains__, of_item), None):
                    key, index = read_pointer(pointers[row].value)
                    places.setdefault(key, []).append((item_id, index))
            left = dict(rows)
            for key, named in places.items():
                for item_id, item in await self._items_at(key, named, allowance):
                    del left[item_id]
                    yield item_id, item
            for item_id, of_item in left.items():
                found = await self._elsewhere(item_id, of_item, allowance)
                if found is None:
                    # A reference to it is refused, also if other items exist.
                    break
                yield item_id, found

    async def _elsewhere(self, item_id: str, rows: Sequence[str], allowance: ReadAllowance) -> Json | None:
        """Return an item from a node where it was stored again, after its first place is gone."""
        for row in rows:
            prefix = further_pointers(row)
            start, end = prefix, after_prefix(prefix)
            while further := await self._records.range(start, end, limit=_FURTHER):
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
        items = _items(key, *await self.decoder.decode([record.value], allowance)) if record else ()
        if own_ids.are_own_ids(items):
            return await own_ids.find(self._records, self.decoder, items, named, allowance)
        return [(item_id, items[index]) for item_id, index in named if index < len(items)]

    async def delete(
        self, response_id: str, *, extra_ops: Sequence[Op] = (), conditions: Sequence[Condition] = ()
    ) -> bool:
        """Delete a response and all content that nothing else refers to.

        Args:
            extra_ops, conditions: further ops and conditions of the commit.

        Returns:
            False if the response does not exist.

        Raises:
            Conflict: one of `conditions` does not hold.
        """
        key = f"r/{response_id}"
        retry = Retry()
        while True:
            await retry.wait()
            record = (await self._records.get_many([key])).get(key)
            if record is None:
                return False
            entry = Entry.from_stored(*await self.decoder.decode([record.value]))
            released = entry.references().values()
            ops: Sequence[Op] = [
                Delete(key),
                *map(Delete, entry.keys()),
                *(unsettled(content, entry.owner) for content in released),
            ]
            try:
                await self._records.commit([*ops, *extra_ops], [VersionIs(key, record.version), *conditions])
            except Conflict as conflict:
                if any(condition in conditions for condition in conflict.failed):
                    raise
                continue
            await self._reclaim.try_run(released, entry.owner)
            return True

    async def sweep(self, *, limit: int = 100) -> int:
        """Delete at most `limit` expired responses, and finish interrupted deletions.

        Freed space is returned to the file system.

        Returns:
            The number of deleted responses; if it is `limit`, there may be more.
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
        # By the store's clock, which leases use: by this server's clock, other servers might lose their leases.
        while await self._records.sweep(await self._records.now()):
            pass
        return deleted

    async def close(self) -> None:
        """Release the store's resources."""
        await self._records.close()

    async def _joining(
        self,
        response: Json,
        owner: Owner,
        base: str | None,
        input_items: Sequence[Json],
        exchanges: Mapping[str, Json],
    ) -> ConversationAppend | None:
        """Return what the response adds to its conversation; None if nothing."""
        if response["conversation"] is None or response["status"] not in _JOINS:
            return None
        own = without_stand_in([*(await self._kept(base) or []), *input_items])
        items = [*own, *with_exchanges(response["output"], exchanges)]
        return ConversationAppend(response["conversation"]["id"], owner, items)

    def _oldest(self) -> str:
        """Return the least order of a response that has not expired."""
        return second(0 if self._retention is None else self._clock() - self._retention)

    async def _forget(self, listed: str) -> None:
        response_id = listed.rpartition("/")[2]
        try:
            found = await self.delete(response_id)
        except codec.UnreadableError as error:
            logger.error(
                "expired response deleted; its history could not be read and stays: %s: %s", response_id, error
            )
            await self._records.commit([Delete(f"r/{response_id}"), Delete(listed)])
            return
        if not found:
            # A bounded store has dropped the response early, but not this row.
            await self._records.commit([Delete(listed)])

    async def _drop_bucket(self, row: str, prefix: str) -> None:
        with suppress(Conflict):
            await self._records.commit([Delete(row)], [Empty(prefix)])

    async def _bounds(self, owner: Owner, after: str | None, order: Order) -> tuple[str, str]:
        """Return the range of keys that `list` reads."""
        of = Hasher(owner).owner
        start, end = f"l/{of}/{self._oldest()}", after_prefix(f"l/{of}/")
        if after is None:
            return start, end
        record = (await self._records.get_many([f"r/{after}"])).get(f"r/{after}")
        entry = Entry.from_stored(*await self.decoder.decode([record.value])) if record else None
        if entry is None or Hasher(entry.owner).owner != of:
            raise bad_request(f"No response with id '{after}' is in this list.", "after", "invalid_value")
        key = listing(of, entry.order, after)
        return (start, key) if order == "desc" else (max(start, key + "\0"), end)

    async def _entries(
        self, response_ids: Sequence[str], hold: Callable[[int], object] | None = None
    ) -> tuple[Sequence[_Found], int]:
        """Return the records of the first responses, up to the size of a page, and how many of the ids they cover."""
        keys = [f"r/{response_id}" for response_id in response_ids]
        found, seen = await first_decoded(self._records, self.decoder, keys, self._page_bytes, hold)
        oldest = self._oldest()
        entries = [_Found(Entry.from_stored(value), record.version, size) for record, value, size in found.values()]
        return [each for each in entries if each.entry.order >= oldest], seen


def _history_gone() -> ApiError:
    message = "The history of the previous response is no longer stored."
    return bad_request(message, "previous_response_id", "previous_response_not_found")


def _content_of(entry: Entry) -> Sequence[str]:
    """Return the keys of content that is stored outside the response's record."""
    keys = [f"b/{name}" for name in entry.fields.values()]
    return keys if entry.response["output"] or not entry.outputs else [*keys, f"n/{entry.history}"]


def _stored(found: _Found, content: Mapping[str, tuple[Record, Any, int]], size: int) -> Sequence[StoredResponse]:
    """Return the response; nothing if part of it is gone."""
    entry = found.entry
    if content.keys() < set(_content_of(entry)):
        return ()
    response = _response(entry, {key: value for key, (_, value, _) in content.items()})
    stored = StoredResponse(
        response,
        entry.owner,
        entry.whole,
        entry.input,
        found.version,
        entry.transcript,
        size,
        entry.timing,
        entry.recorded,
    )
    return (stored,)


def _response(entry: Entry, content: Mapping[str, Any]) -> Json:
    fields = {field: content[f"b/{name}"] for field, name in entry.fields.items()}
    if f"n/{entry.history}" in _content_of(entry):
        fields["output"] = content[f"n/{entry.history}"][-entry.outputs :]
    response = {**entry.response, **fields}
    for field, value in ADDED_FIELDS.items():
        response.setdefault(field, value)
    return response | {"output": [without_exchange(item) for item in response["output"]]}


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
