"""Store responses and their histories.

Histories that conversations share are stored once. They are deleted with the last response that depends on them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final

from ..concurrency.offloading import Computation, in_thread_if_large
from ..core.exchanges import with_exchanges
from ..core.ids import tag_of
from ..core.owner import Owner
from ..core.types import Json
from ..intervals import DEFAULT, Intervals
from ..stream.transcript import Mark
from .all_lists import AllLists
from .commit_outcome import until_known
from .conflict_retry import ConflictRetry
from .conversation_store import ConversationAppend, ConversationStore, without_stand_in
from .decoder import Decoder
from .ends import AtEnd, Ends, OnEnd
from .expiry import Expiry
from .feature_store import FeatureStore, open_feature_stores, open_unfinished
from .garbage_collector import GarbageCollector
from .histories import Histories
from .item_finder import ItemFinder
from .item_ids import COMPARED_BYTES
from .layout import Entry, tag_of_history, unsettled
from .layout import imported as mark_imported
from .list_row_pages import Listing
from .placement import Placement
from .queued_end import QueuedEnd
from .read_allowance import PAGE_BYTES
from .records import (
    Condition,
    Conflict,
    Delete,
    Moving,
    Op,
    Record,
    Records,
    VersionIs,
    committed,
    find_replicated,
    partitions_of,
    read_replicated,
)
from .response_loader import ResponseLoader
from .response_pages import SCANNED_ROWS, ResponseList
from .retention import Counts, Horizon, Retention
from .running_response import RunningResponse, find_running
from .saving import Recording, Saving
from .scores import Scores

_RECENT_BYTES: Final = 128 * 2**20

_JOINS: Final = ("completed", "incomplete")
"""Statuses with which a response's input and output are added to its conversation."""

NOTHING_RECORDED: Final = Recording()


class Archive:
    """Stores responses, each shared part of a history once, and deletes them when they expire.

    Args:
        records: the store.
        retention: seconds from a response's creation until it expires; None keeps it until it is deleted.
        clock: returns the time of the store's clock, in seconds since the epoch; it decides which responses are found.
        knows_time: returns whether `clock` knows that time; until then, expired responses are found too.
        page_bytes: a page of a list ends once its responses reach this size.
        recent_bytes: the most that is read of a history whose oldest turns may be left out.
        compared_bytes: the most that is read of a history to compare ids; ids of a longer one stay shared.
        scan_rows: a page of a filtered list ends after this number of rows.
        scan_seconds: a page of a filtered list ends after this time.
        decoder: decodes the stored values.
        at_end: say what else the commit of a response's end writes.
        on_end: are called after that commit.

    Attributes:
        load, entry, entry_version, own_inputs, queued: read responses, as `ResponseLoader` does.
        listing, all_lists: the lists of owners, and those of all owners as one, without the responses themselves.
        list: reads a page of an owner's responses, as `ResponseList` does.
        history, recent, recent_of_conversation: read histories, as `Histories` does.
        find_items: finds items by their ids, as `ItemFinder` does.
        scores: what people and scripts think of responses.
        placement: chooses the tags of new responses and conversations.
        horizon: returns how far a deletion of what has expired goes, as `Retention` does.
        clock: returns the time of the store's clock, in seconds since the epoch, without a round trip.

    Every method raises `ApiError` 503 when the store is unavailable.
    """

    def __init__(
        self,
        records: Records,
        *,
        retention: float | None = 30 * 86_400.0,
        clock: Callable[[], float] = time.time,
        knows_time: Callable[[], bool] = lambda: True,
        page_bytes: int = PAGE_BYTES,
        recent_bytes: int = _RECENT_BYTES,
        compared_bytes: int = COMPARED_BYTES,
        scan_rows: int = SCANNED_ROWS,
        scan_seconds: float = DEFAULT.list_scan_seconds,
        decoder: Decoder | None = None,
        at_end: Sequence[AtEnd] = (),
        on_end: Sequence[OnEnd] = (),
    ) -> None:
        self._records = records
        self.ends = Ends(records, at_end, on_end, DEFAULT.store_retry_seconds)
        """What is written with the ends of responses."""
        self.decoder = decoder = decoder or Decoder()
        self.clock = clock
        self._compared_bytes, self.placement = compared_bytes, Placement(partitions_of(records))
        self._garbage_collector = GarbageCollector(records, decoder, page_bytes)
        self.conversations = ConversationStore(records, decoder, clock)
        """The store of the conversations."""
        self._unfinished = open_unfinished(records, decoder)
        self._histories = Histories(records, decoder, self.conversations, recent_bytes)
        self.history, self.recent = self._histories.whole, self._histories.newest
        self.recent_of_conversation = self._histories.newest_of_conversation
        self.find_items = ItemFinder(records, decoder).find
        retention_rule = Retention(retention, clock, knows_time)
        self.horizon, self._oldest = retention_rule.horizon, retention_rule.oldest
        self._loader = loader = ResponseLoader(records, decoder, retention_rule, page_bytes)
        self.load, self.entry, self.entry_version = loader.load, loader.entry, loader.entry_version
        self.own_inputs, self.queued = loader.own_inputs, loader.queued
        self.list = ResponseList(records, decoder, retention_rule, loader, scan_rows, scan_seconds).page
        self.listing = Listing(records, retention_rule, loader)
        self.all_lists = AllLists(records, retention_rule, loader)
        self.scores = Scores(records)
        self._expiry = Expiry(records, self.delete)

    async def read_replicated[Found](
        self, response_id: str, read: Callable[[], Awaitable[Found]], needs: Callable[[Found], bool]
    ) -> Found:
        """Return what is read of a response, once it is not lost with one server, as far as the store is set up so.

        Args:
            read, needs: as for `records.read_replicated`.
        """
        return await read_replicated(self._records, tag_of(response_id), read, needs)

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
        imported: bool = False,
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
            imported: whether another server generated it, so that its end is not one of this installation.

        Returns:
            The version that was stored.

        Raises:
            Conflict: the stored response does not have `version`, or is gone; or one of `conditions` does not hold.
        """
        exchanges = exchanges or {}
        append, base_items = await self._prepared(response, owner, base, input_items, base_items, exchanges)
        computation = Computation(input_items, response, exchanges)
        saving = await computation.run(
            lambda: Saving(
                response, owner, base, input_items, base_items, transcript, exchanges, append, recording, computation
            )
        )
        retry = ConflictRetry()
        while True:
            await retry.wait()
            known = await saving.read(self._records, self.decoder, self._compared_bytes)
            plan = await saving.computation.run(partial(saving.plan, known, self.clock(), version))
            ended = None if imported else plan.ended
            ops = [*self.ends.ops(ended), *plan.ops, *extra_ops]
            try:
                await self._records.commit(ops, [*plan.conditions, *conditions])
            except Conflict as conflict:
                if any(condition in conditions for condition in conflict.failed):
                    raise
                continue
            self.ends.written(ended)
            await self._garbage_collector.try_run(plan.released, owner)
            return plan.version

    async def end_queued(
        self, ends: Sequence[QueuedEnd], extra_ops: Sequence[Op] = (), conditions: Sequence[Condition] = ()
    ) -> bool:
        """Store the ends of responses that were queued and never ran, in one commit; return False if one has changed.

        Args:
            ends: the ends, of responses of one owner with one tag.
            extra_ops, conditions: further ops and conditions of the commit.
        """
        now = self.clock()
        ended = [each.ended(now) for each in ends]
        ops = [op for each in ended for op in self.ends.ops(each)]
        ops += [op for each in ends for op in each.ops()]
        if not await committed(self._records, [*ops, *extra_ops], [*(each.unchanged for each in ends), *conditions]):
            return False
        for each in ended:
            self.ends.written(each)
        return True

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
        mark = mark_imported(response["id"])
        new = [VersionIs(mark.key, None), VersionIs(f"r/{response['id']}", None)]
        try:
            await self.save(
                response,
                owner=owner,
                base=base,
                input_items=input_items,
                extra_ops=[mark],
                conditions=[*new, *conditions],
                imported=True,
            )
        except Conflict as conflict:
            if any(condition in new for condition in conflict.failed):
                return False
            raise
        return True

    async def stored_or_imported(self, response_ids: Sequence[str]) -> set[str]:
        """Return the ids whose responses are stored or were imported before."""
        keys = {key: each for each in response_ids for key in (f"r/{each}", mark_imported(each).key)}
        return {keys[key] for key in await self._records.get_many(list(keys))}

    async def join(
        self, response: Json, *, owner: Owner, input_items: Sequence[Json], exchanges: Mapping[str, Json]
    ) -> None:
        """Append the input and the output of a response that is not stored to its conversation.

        Args:
            owner, input_items, exchanges: as for `save`.
        """
        if append := await self._joining(response, owner, None, input_items, exchanges):
            await self._append(append, input_items, response["output"])

    async def _prepared(
        self,
        response: Json,
        owner: Owner,
        base: str | None,
        input_items: Sequence[Json],
        base_items: Sequence[Json],
        exchanges: Mapping[str, Json],
    ) -> tuple[ConversationAppend | None, Sequence[Json]]:
        """Return what the commit adds to the response's conversation, and the items of a base in another partition.

        What a conversation in another partition gets is added now: it is added once, however often that is tried.
        """
        append, tag = await self._joining(response, owner, base, input_items, exchanges), tag_of(response["id"])
        if base and not base_items and tag_of_history(base) != tag:
            base_items = await self._histories.stored_items(base) or ()
        if append and append.tag != tag:
            await self._append(append, input_items, response["output"])
            append = None
        return append, base_items

    async def _append(self, append: ConversationAppend, *items: Sequence[Json]) -> None:
        retry = ConflictRetry()
        while True:
            await retry.wait()
            known = await append.read(self._records, *append.pointers)
            ops, conditions = await in_thread_if_large(partial(append.plan, known), *items)
            if not ops or await committed(self._records, [*append.used, *ops], conditions):
                return

    @cached_property
    def of_features(self) -> Sequence[FeatureStore]:
        """What the features store, for exports, counts and deletions of all that a user has."""
        return open_feature_stores(self._records, self.decoder)

    @property
    def transactional(self) -> bool:
        """Whether the store is transactional."""
        return self._records.transactional

    async def now(self) -> float:
        """Return the time of the store's clock, in seconds since the epoch."""
        return await self._records.now()

    async def read(self, keys: Sequence[str], max_bytes: int) -> dict[str, Record]:
        """Return the records of these keys, of `max_bytes` and one more at most."""
        return await self._records.get_many(keys, max_bytes=max_bytes)

    async def running(self, response_id: str) -> RunningResponse | None:
        """Return the foreground response that any server of the store is running; None if there is none."""
        return await find_running(self._records, self.decoder, response_id) if self._records.transactional else None

    async def owner_of(self, response_id: str) -> Owner | None:
        """Return the owner of a response, stored or running; None if it is unknown."""
        found = await self.entry(response_id) or await self.running(response_id)
        # It may have ended between the two reads.
        found = found or await self.entry(response_id)
        return found.owner if found else None

    async def owner_of_packed(self, response_id: str) -> Owner | None:
        """Return the owner of a response that is packed and has not expired; None if there is none."""
        found = await self._records.packed(response_id) if isinstance(self._records, Moving) else None
        return found[0] if found and found[1] >= self._oldest() else None

    async def _record(self, key: str) -> Record | None:
        return (await self._records.get_many([key])).get(key)

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
        if isinstance(self._records, Moving) and await self._records.forget(response_id, extra_ops, conditions):
            return True
        key = f"r/{response_id}"
        retry = ConflictRetry()
        while True:
            await retry.wait()
            record = await find_replicated(self._records, tag_of(response_id), partial(self._record, key))
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
            await self._garbage_collector.try_run(released, entry.owner)
            return True

    async def count(self, horizon: Horizon) -> Counts:
        """Count the responses that deletions up to `horizon` delete, and all."""
        return await self._expiry.count(horizon.oldest)

    async def sweep(self, horizon: Horizon | None = None, *, limit: int = 100) -> int:
        """Delete at most `limit` expired responses, and finish interrupted deletions.

        Freed space is returned to the file system.

        Args:
            horizon: how far to go; None goes as far as the store's clock says.

        Returns:
            The number of deleted responses; if it is `limit`, there may be more.
        """
        await self._garbage_collector.resume(limit)
        await self.conversations.resume(limit)
        for finish in self._unfinished:
            await finish(limit)
        # By the store's clock: by that of a server, others might lose their responses and leases.
        horizon = horizon or self.horizon(await self._records.now())
        deleted = await self._expiry.run(horizon.oldest, limit)
        while await self._records.sweep(horizon.at):
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
        own = without_stand_in([*(await self._histories.stored_items(base) or []), *input_items])
        items = [*own, *with_exchanges(response["output"], exchanges)]
        now = self.clock()
        return await in_thread_if_large(
            partial(ConversationAppend, response["conversation"]["id"], owner, items, now), items
        )


async def save_once(
    archive: Archive,
    response: Json,
    unknown: str,
    intervals: Intervals,
    *,
    conditions: Sequence[Condition] = (),
    **more: Any,
) -> None:
    """Store a response that has a new id, exactly once, also if the answer to a commit is lost.

    Args:
        archive: stores it.
        response: the response object.
        unknown: the error message if the store did not confirm in time whether the response is stored.
        intervals: how often and how long to ask the store.
        conditions: conditions of the commit.
        more: further arguments of `Archive.save`.

    Raises:
        Conflict: one of `conditions` does not hold.
        OutcomeUnknown: the store did not confirm in time.
    """

    async def save(stored: bool) -> None:
        if not stored:
            await archive.save(response, conditions=conditions, **more)

    await until_known(save, unknown, intervals)
