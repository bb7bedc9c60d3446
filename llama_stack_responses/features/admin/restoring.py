"""Writes a backup to a store: all of it, or what is different since an earlier one, while servers use the store.

Content comes first, then what names it, and lists and queues last: so what a client can find is whole. Rows that exist
stay as they are. With an earlier backup of the same store, three states of a row are compared, as a merge does: a row
that both backups have is left alone, so what was deleted here does not come back; one that has changed is replaced
unless it has changed here, too; and what was deleted there is deleted here, by the same code that deletes for a client.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import batched, product
from typing import Final

from ...commands.progress import ProgressLine
from ...core.ids import tag_of
from ...core.lru_cache import LruCache
from ...core.statuses import ENDED_BATCH, UNFINISHED
from ...store import codec
from ...store.backup_format import DAMAGED, TAKEN
from ...store.backup_index import BackupIndex, Indexed, digest
from ...store.conflict_retry import ConflictRetry
from ...store.content_names import Hasher
from ...store.conversation_store import Conversation
from ...store.history_nodes import parent_of
from ...store.kept_secret import KEPT_SECRET
from ...store.layout import OUTBOX, TAGS_OF_OWNER, Entry, read_pointer, reference, unsettled
from ...store.partitions import noted
from ...store.records import (
    Condition,
    Delete,
    Ensure,
    Op,
    Put,
    Record,
    Records,
    VersionIs,
    committed,
    pages_in,
    partitions_of,
)
from ...store.routing import tag_of_key
from .store_view import StoreView

_COMMIT_ROWS: Final = 200
_COMMIT_BYTES: Final = 4 * 2**20
"""Size of a commit."""
_READ_ROWS: Final = 50
"""Rows that are read at a time."""

_KNOWN: Final = 10_000
"""Conversations of which it is remembered whether they have changed here."""

_PACKED: Final = ("i/", "j/", "l/", "m/", "r/")
"""Prefixes of rows that exist without being in the store if what they belong to is in an object store."""

OWN: Final = ("p/", "se/", "sw/", KEPT_SECRET, "u/", "z/turn", "oa/", "qh/", "qr/", "bt/p/", "wh/l/")
"""Rows that servers write by themselves, also to a store without responses: leases, secrets and hints."""

_DERIVED: Final = ("us/s/",)
"""Rows that servers make of others, for each partition of their store: this one may have another number of them."""

_ADDED_UP: Final = "us/p/"
"""Rows that servers add to others, and delete with the same commit."""

PHASES: Final = {
    **dict.fromkeys(("r", "c", "bt", "sk", "wh"), 1),
    **dict.fromkeys(("l", "sc", "x", "g", "h", "j", "o", "q"), 2),
    **dict.fromkeys(("bt/q", "wh/e", "wh/q"), 3),
}
"""When a row is written, by the first part of its key, or the first two; 0 of others."""

_OF_BATCHES: Final = ("bt/d/", "bt/n/", "bt/q/", "bt/r/", "bt/t/")
_UNFINISHED: Final = (
    *("d/", "e/", "g/", "h/", "k/", "o/", "q/", "s/", "t/", "v/"),
    *(*_OF_BATCHES, "wh/e/", "wh/q/", "su/"),
)
"""Rows of what waits or runs, of events, and of content that is to be checked: the servers there go on with it."""

_ALONE: Final = frozenset({"ak", "au", "bt", "ce", "rf", "sc", "sk", "sl", "so", "sp", "su", "sv", "wh"})
"""First parts of keys whose rows are deleted one by one. The others belong to a response or a conversation."""

_REVOKED: Final = frozenset({"ak", "sc", "sl"})
"""Of these, those that are deleted even if they have changed here."""

_OF_RESPONSES: Final = ("sc/", "sl/")
"""Rows that a response may get at any time, whose keys end with its id."""


@dataclass(slots=True)
class Counts:
    """What was done.

    Attributes:
        rows: rows that were written, or were there.
        expired: rows that were left out since they have expired.
        left: rows that were left out since servers there go on with them, or because they are of servers.
        changed: rows that were replaced.
        deleted: responses, conversations and other objects that were deleted.
        kept: rows that have changed on both sides, or were deleted here, and stay as they are here.
    """

    rows: int = 0
    expired: int = 0
    left: int = 0
    changed: int = 0
    deleted: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Manner:
    """How a backup is written.

    Attributes:
        adds: whether rows that exist stay as they are.
        since: whether there is an earlier backup.
        live: whether the servers of the store that was backed up go on.
    """

    adds: bool
    since: bool
    live: bool

    @property
    def moves(self) -> bool:
        """Whether servers use this store meanwhile."""
        return self.since or self.live


@dataclass(slots=True)
class _Batch:
    """Rows of one partition that one commit writes."""

    ops: list[Put | Ensure] = field(default_factory=list)
    size: int = 0


class Restoring:
    """Writes a backup.

    Args:
        records: the store.
        index: the backup.

    Attributes:
        has_begun: whether the store has answered, so that something may be written.
    """

    def __init__(self, records: Records, index: BackupIndex, manner: Manner) -> None:
        self._records, self._index, self._manner = records, index, manner
        self._partitions = partitions_of(records)
        self._batches = defaultdict[int, _Batch](_Batch)
        self._changed = defaultdict[int, list[Indexed]](list)
        self._named = set[str]()
        self._notes = list[Indexed]()
        self._ended = ("", False)
        self._own = LruCache[str, bool](_KNOWN)
        self._view = StoreView(records)
        self.counts, self.has_begun = Counts(), False

    async def run(self, progress: ProgressLine) -> Counts:
        """Write it."""
        now = await self._records.now()
        self.has_begun = True
        if self._manner.since:
            # Before the rows to which they were added there are replaced: nothing is counted twice.
            await self._remove_gone(added_up=True)
        for phase in range(1 + max(PHASES.values())):
            self._ended = ("", False)
            async for row in self._wanted(phase, now):
                await self._write(row, progress)
            await self._flush(progress)
            if phase == 0:
                await self._complete(self._named)
        await self._apply_notes()
        if self._manner.since:
            await self._let_go_of_kept()
            await self._remove_gone(added_up=False)
            await self._remove_derived()
        return self.counts

    async def _wanted(self, phase: int, now: float) -> AsyncIterator[Indexed]:
        """Yield the rows of a phase that are to be written."""
        counts = self.counts
        for row in self._index.rows(phase):
            if row.expires_at is not None and row.expires_at <= now:
                counts.expired += 1
            elif row.key.startswith((DAMAGED, TAKEN)):
                continue
            elif row.key.startswith(OUTBOX):
                self._notes.append(row)
                counts.left += 1
            elif self._is_left(row.key):
                counts.left += 1
            elif _unfinished(row.key) or row.was != row.now:
                yield row

    def _is_left(self, key: str) -> bool:
        """Whether servers write a row anew, or those there go on with it."""
        manner = self._manner
        is_theirs = manner.moves and (key.startswith(OWN) or (manner.live and _unfinished(key)))
        return is_theirs or key.startswith(_DERIVED)

    async def _write(self, row: Indexed, progress: ProgressLine) -> None:
        number = tag_of_key(row.key) % self._partitions
        late = _unfinished(row.key)
        if self._manner.since and late and await self._has_ended(row.key):
            self.counts.left += 1
            return
        if self._manner.since and row.was is None and await self._is_unwanted(row):
            self.counts.kept += 1
            return
        if row.was is not None and not late:
            self._changed[number].append(row)
            if len(self._changed[number]) >= _COMMIT_ROWS:
                await self._replace(self._changed.pop(number))
            return
        if self._manner.since and row.key.startswith("f/"):
            self._named.add(row.key.split("/")[1])
        await self._add(number, self._op(row), progress)
        if row.key.startswith(("c/", "l/")):
            await self._add_tag(row, progress)

    async def _is_unwanted(self, row: Indexed) -> bool:
        """Whether a row that is new there belongs to a deleted response, or to a conversation as it is not here."""
        if row.key.startswith(_OF_RESPONSES):
            stored = f"r/{row.key.rpartition('/')[2]}"
            return stored not in await self._records.get_many([stored])
        is_pointer = row.key.startswith(("i/", "j/")) and not _unfinished(row.key)
        return await self._is_own(read_pointer(self._index.value(row))[0] if is_pointer else row.key)

    def _op(self, row: Indexed) -> Put | Ensure:
        kind = Ensure if self._manner.adds else Put
        return kind(row.key, self._index.value(row), row.expires_at)

    async def _add(self, number: int, op: Put | Ensure, progress: ProgressLine) -> None:
        batch = self._batches[number]
        batch.ops.append(op)
        batch.size += len(op.value)
        if len(batch.ops) >= _COMMIT_ROWS or batch.size >= _COMMIT_BYTES:
            await self._commit(self._batches.pop(number), progress)

    async def _add_tag(self, row: Indexed, progress: ProgressLine) -> None:
        """Write that the owner of a listed response, or of a conversation, has something with its tag.

        That may not be among the other rows: the snapshot of the owner's home partition may be from before. Or it was
        deleted here.
        """
        object_id = row.key.rpartition("/")[2]
        if not (tag := tag_of(object_id)):
            return
        if row.key.startswith("l/"):
            of = row.key.split("/")[1]
        else:
            of = Hasher(Conversation.decode(object_id, Record(self._index.value(row), 1)).owner).owner
        key = f"{TAGS_OF_OWNER}{of}/{tag:03x}"
        if self._manner.moves or self._index.get(key) is None:
            await self._add(tag_of_key(key) % self._partitions, Ensure(key, b""), progress)

    async def _flush(self, progress: ProgressLine) -> None:
        while self._batches:
            await self._commit(self._batches.popitem()[1], progress)
        while self._changed:
            await self._replace(self._changed.popitem()[1])

    async def _commit(self, batch: _Batch, progress: ProgressLine) -> None:
        ops = await self._missing(batch.ops) if self._manner.adds else batch.ops
        await self._records.commit(ops)
        self.counts.rows += len(batch.ops)
        progress.add(len(batch.ops))

    async def _missing(self, ops: Sequence[Put | Ensure]) -> list[Op]:
        """Return the commit that writes the rows of `ops` that are not here. What is packed here comes back first."""
        found = dict[str, Record]()
        for some in batched([op.key for op in ops if op.key.startswith(_PACKED)], _READ_ROWS):
            found |= await self._records.get_many(some)
        here = [op for op in ops if op.key in found and op.key.startswith("r/")]
        unneeded = [each for op in here for each in _unneeded(op.value, found[op.key])]
        return [*(op for op in ops if op.key not in found), *unneeded]

    async def _replace(self, rows: Sequence[Indexed]) -> None:
        """Replace rows that are as the earlier backup has them."""
        retry = ConflictRetry()
        while True:
            await retry.wait()
            found = await self._records.get_many([row.key for row in rows])
            same = [row for row in rows if row.key in found and digest(found[row.key].value) == row.was]
            ops = [op for row in same for op in self._replacement(row, found[row.key])]
            if not ops or await committed(self._records, ops, [_unchanged(row.key, found) for row in same]):
                break
        done = sum(row.key in found and digest(found[row.key].value) == row.now for row in rows)
        self.counts.changed += len(same)
        self.counts.kept += len(rows) - len(same) - done

    def _replacement(self, row: Indexed, here: Record) -> list[Op]:
        value = self._index.value(row)
        unneeded = _unneeded(here.value, Record(value, 1)) if row.key.startswith("r/") else []
        return [Put(row.key, value, row.expires_at), *unneeded]

    async def _let_go_of_kept(self) -> None:
        """Let go of what responses have there and not here, if they stay as they are here or were deleted here."""
        for row in self._index.rows(PHASES["r"]):
            if not row.key.startswith("r/") or row.was in (None, row.now):
                continue
            value, retry = self._index.value(row), ConflictRetry()
            while True:
                await retry.wait()
                here = (await self._records.get_many([row.key])).get(row.key)
                ops = [] if here and digest(here.value) == row.now else _unneeded(value, here)
                unchanged = VersionIs(row.key, here.version if here else None)
                if not ops or await committed(self._records, ops, [unchanged]):
                    break

    async def _is_own(self, key: str) -> bool:
        """Whether a row leads to a conversation that has changed here since the earlier backup, or was deleted.

        Items that both sides have added have the same positions, so those of one side would hide the others.
        """
        if not key.startswith(("a/", "m/")):
            return False
        head = f"c/{key.split('/')[1]}"
        own = self._own.get(head)
        if own is None:
            row, own = self._index.get(head), False
            if row and row.was is not None:
                found = (await self._records.get_many([head])).get(head)
                own = found is None or digest(found.value) not in (row.was, row.now)
            self._own.set(head, own)
        return own

    async def _has_ended(self, key: str) -> bool:
        """Whether what a row of `_UNFINISHED` belongs to has ended here, or goes on here: it runs no second time."""
        if key.startswith(_OF_BATCHES):
            return await self._has_batch_ended(key.split("/")[2])
        if key.startswith("wh/q/"):
            _, _, endpoint, _, delivery = key.split("/")
            return not await self._is_as_there(f"wh/d/{endpoint}/{delivery}")
        stored = f"r/{_response_of(key)}"
        if self._ended[0] != stored:
            record = (await self._records.get_many([stored])).get(stored)
            ended = record is not None and Entry.decode(record).response["status"] not in UNFINISHED
            self._ended = (stored, ended)
        return self._ended[1]

    async def _has_batch_ended(self, batch: str) -> bool:
        """Whether a batch has ended here, is gone here, or is worked for here."""
        work = f"bt/q/{batch}"
        if self._ended[0] != work:
            row = self._index.get(work)
            stored = f"bt/o/{self._index.value(row).decode()}/{batch}" if row else work
            found = await self._records.get_many([work, stored])
            self._ended = (work, work in found or _has_ended(found.get(stored)))
        return self._ended[1]

    async def _is_as_there(self, key: str) -> bool:
        """Whether a row is here as the backup has it."""
        row, found = self._index.get(key), (await self._records.get_many([key])).get(key)
        return row is not None and found is not None and digest(found.value) == row.now

    async def _complete(self, names: Collection[str]) -> None:
        """Write contents that are new in no backup, but in use again: all that used them may be deleted here."""
        left = set(names)
        while left:
            name = left.pop()
            for key in (f"n/{name}", f"b/{name}"):
                row = self._index.get(key)
                if row is None or row.was is None or key in await self._records.get_many([key]):
                    continue
                value = self._index.value(row)
                ops: list[Op] = [Ensure(key, value, row.expires_at)]
                if parent := parent_of(value) if key.startswith("n/") else None:
                    ops.append(Ensure(reference(parent, name), b""))
                    left.add(parent)
                await self._records.commit(ops)

    async def _apply_notes(self) -> None:
        """Apply what commits there had noted for another partition, unless a snapshot shows that it was applied."""
        for row in self._notes:
            mark, ops = noted(row.key, self._index.value(row))
            if not self._index.get(mark):
                for op in ops:
                    await self._records.commit([op])

    async def _remove_gone(self, *, added_up: bool) -> None:
        for key, was in self._index.removed():
            if key.startswith(_ADDED_UP) is added_up:
                self.counts.deleted += await self._remove(key, was)

    async def _remove_derived(self) -> None:
        """Have servers here make rows of `_DERIVED` again: what they are made of may have been replaced."""
        for prefix, number in product(_DERIVED, range(self._partitions)):
            async for rows in pages_in(self._records, number, prefix, _COMMIT_ROWS):
                await self._records.commit([Delete(key) for key, _ in rows])

    async def _remove(self, key: str, was: bytes) -> bool:
        """Delete what is gone there; return whether it was an object that was here."""
        kind, _, rest = key.partition("/")
        match kind:
            case "r":
                return await self._view.delete(rest)
            case "c":
                return await self._view.archive.conversations.delete(rest)
            case "m":
                return await self._remove_item(key, was)
            case "bt" if rest.startswith("q/") and await self._is_worked_for(key):
                return False  # it was cancelled here
            case "us":
                await self._remove_row(key, was)
            case _ if kind in _ALONE:
                return await self._remove_row(key, None if kind in _REVOKED else was)
        return False

    async def _is_worked_for(self, work: str) -> bool:
        """Whether a batch is here that has not ended, with this row of work left to do."""
        found = (await self._records.get_many([work])).get(work)
        stored = f"bt/o/{found.value.decode()}/{work.split('/')[2]}" if found else work
        batch = (await self._records.get_many([stored])).get(stored)
        return found is not None and not _has_ended(batch)

    async def _remove_item(self, key: str, was: bytes) -> bool:
        """Delete an item of a conversation, unless the item at its position is one that was added here."""
        conversations = self._view.archive.conversations
        found = (await self._records.get_many([key])).get(key)
        conversation = await conversations.load(key.split("/")[1])
        if found is None or conversation is None or digest(found.value) != was:
            return False
        return await conversations.remove(conversation, codec.decode(found.value)["id"])

    async def _remove_row(self, key: str, was: bytes | None) -> bool:
        retry = ConflictRetry()
        while found := await self._records.get_many([key]):
            await retry.wait()
            if was not in (None, digest(found[key].value)):
                self.counts.kept += 1
                return False
            if await committed(self._records, [Delete(key)], [_unchanged(key, found)]):
                return True
        return False


def _has_ended(batch: Record | None) -> bool:
    return batch is None or codec.decode(batch.value)["status"] in ENDED_BATCH


def _unneeded(value: bytes, stays: Record | None) -> list[Op]:
    """Return the ops that let go of what a response has with this value of its record, and not with the one that stays.

    Content that was in an object store between two backups, or is back from there, has other names than before.

    Args:
        stays: None if the response is deleted.
    """
    try:
        entry = Entry.decode(Record(value, 1))
        held = Entry.decode(stays) if stays else None
    except codec.UnreadableError:
        return []
    kept = held.references() if held else {}
    left = {key: content for key, content in entry.references().items() if key not in kept}
    rows = left if held else entry.keys()
    return [*map(Delete, rows), *(unsettled(content, entry.owner) for content in left.values())]


def _unchanged(key: str, found: Mapping[str, Record]) -> Condition:
    return VersionIs(key, found[key].version)


def _unfinished(key: str) -> bool:
    """Whether a row is one of `_UNFINISHED`, or the state of a job."""
    return key.startswith(_UNFINISHED) or (key.startswith("j/") and key.count("/") == 1)


def _response_of(key: str) -> str:
    """Return the id of the response of a row of `_UNFINISHED`."""
    parts = key.split("/")
    return parts[1] if parts[0] in ("e", "j", "k", "s", "v") else parts[-1]
