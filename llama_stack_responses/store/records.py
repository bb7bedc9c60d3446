"""Records: the key-value store on which all durable state is built.

A backend offers four things: reads of many keys in one round trip, atomic commits with conditions, ordered ranges, and
expiry. Everything else (responses, histories, references between them) is built on top. A new backend is one small
class that passes `tests/contract/test_records.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from itertools import batched
from typing import Final, Protocol, runtime_checkable

from ..core.errors import ApiError
from ..core.owner import Owner

__all__ = [
    "UNAVAILABLE",
    "Condition",
    "Conflict",
    "Delete",
    "Empty",
    "Ensure",
    "Inspected",
    "Limited",
    "Notify",
    "Op",
    "Persistent",
    "PubSub",
    "Put",
    "Record",
    "Records",
    "Snapshots",
    "Unanswered",
    "VersionIs",
    "Write",
    "after_prefix",
    "committed",
    "until",
    "writes_of",
]

UNAVAILABLE: Final = 503
"""Status of the error while the store is unreachable, does not answer, is full or locked."""

_INLINE_RANGES: Final = 8
"""Ranges that a store which reads in the event loop reads one after the other: about a millisecond."""


@dataclass(frozen=True, slots=True)
class Record:
    """A stored value. `version` is 1 for a new key and grows by one with each `Put`."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write `key`, whether it exists or not.

    Attributes:
        key: the key.
        value: its value.
        expires_at: seconds since the epoch; None is never.
        uses_reserve: whether a full store takes it, in the room that it keeps for deletions: what frees room follows,
            which needs this write.
    """

    key: str
    value: bytes
    expires_at: float | None = None
    uses_reserve: bool = False


@dataclass(frozen=True, slots=True)
class Ensure:
    """Write `key` if it is absent; otherwise leave its value, version and expiry as they are."""

    key: str
    value: bytes
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete `key`; do nothing if it is absent."""

    key: str


@dataclass(frozen=True, slots=True)
class Notify:
    """Notify the subscriptions to `name` in other processes after the commit. The notification may be lost."""

    name: str


@dataclass(frozen=True, slots=True)
class VersionIs:
    """`key` has exactly this version; None requires that it is absent.

    Versions distinguish the writes of a key only until it is deleted: a key that is written again starts at 1.
    """

    key: str
    version: int | None


@dataclass(frozen=True, slots=True)
class Empty:
    """No key begins with `prefix` (at least one character), except the key `but`.

    It allows shared content to be deleted without a race: the deletion commits `Delete(content)` on condition
    `Empty("references of content")`; a new use commits `Put(reference)` on condition `VersionIs(content, ...)`.
    """

    prefix: str
    but: str | None = None


type Write = Put | Ensure | Delete
type Op = Write | Notify
type Condition = VersionIs | Empty


class Conflict(Exception):  # noqa: N818 - a failed condition is a result, not an error
    """A commit was not applied. `failed` holds all of its conditions that did not hold."""

    def __init__(self, failed: Sequence[Condition]) -> None:
        super().__init__(f"the store changed: {', '.join(map(repr, failed))}")
        self.failed = tuple(failed)


class Unanswered(ApiError):  # noqa: N818 - a kind of 503
    """A commit was not answered: it may have been applied, or may still be, for a limited time.

    Attributes:
        settle: has to be awaited before the commit is made again: it returns whether the commit was applied, which it
            never will be afterwards. Stores remember that for half a minute. Raises `ApiError` 503, the store does not
            answer.
    """

    def __init__(self, message: str, settle: Callable[[], Awaitable[bool]]) -> None:
        super().__init__(UNAVAILABLE, message, retry_after=1)
        self.settle = settle


class NoRoom(ApiError):  # noqa: N818 - a kind of 503
    """A commit was refused since the store is full."""


class PubSub(Protocol):
    """Receives notifications of other processes over its own connection, which is lost with the first error."""

    async def subscribe(self, names: Collection[str]) -> None:
        """Subscribe to these names; it takes effect for each once `receive` has returned that name for the first time.

        Raises:
            ApiError: 503, the connection is lost.
        """

    async def unsubscribe(self, names: Collection[str]) -> None:
        """Unsubscribe from these names.

        Raises:
            ApiError: 503, the connection is lost.
        """

    async def receive(self) -> str:
        """Wait for the next name: one that was notified, or whose subscription took effect.

        Raises:
            ApiError: 503, the connection is lost.
        """


class Records(Protocol):
    """A transactional key-value store.

    Keys are ASCII and ordered by their bytes. A key whose `expires_at` has passed is absent for every call and every
    condition. A call that the store cannot serve (locked, full, damaged, unreachable) raises `ApiError` 503. A commit
    has then written nothing, unless the error is `Unanswered`. Instances may be created in one event loop and used in
    another, and after `close` in yet another.
    """

    @property
    def transactional(self) -> bool:
        """Whether commits are atomic for all processes on the store, as queues require."""

    @property
    def has_own_clock(self) -> bool:
        """Whether `now` is the clock of a server that all processes share; otherwise it is that of this machine."""

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        """Return the records of those `keys` that exist, read in one round trip.

        Args:
            max_bytes: stop once the values, in the order of `keys`, reach this many bytes in total. Further values
                are not read.
        """

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        """Apply `ops` in order, all or none, if each of `conditions` holds in the state before them.

        A commit that has returned survives the death of the process. A cancelled call may have applied its commit. One
        that was given up is not applied any more after a while (`commit_deadline.py`).

        Raises:
            Conflict: at least one condition does not hold; nothing was written.
            Unanswered: the answer was lost; the commit was applied, or is still on its way, or was not applied.
        """

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        """Return at most `limit` records with start <= key < end, ordered by key, or by key descending if `reverse`.

        Args:
            max_bytes: limits the answer as in `get_many`.
        """

    def pubsub(self) -> AbstractAsyncContextManager[PubSub] | None:
        """Receive each `Notify` of other processes; None if this store does not support it.

        Entering it raises `ApiError` 503 if notifications are unavailable now.
        """

    async def now(self) -> float:
        """Return the time, in seconds since the epoch, of the clock by which keys expire."""

    async def sweep(self, now: float) -> int:
        """Delete a bounded number of records that expired by `now` (seconds since the epoch); return that number."""

    async def size(self) -> int | None:
        """Return the bytes that the store takes, roughly; None if that is unknown."""

    async def close(self) -> None:
        """Release threads, files and connections. The next call opens them again.

        A call that is under way may fail with a 503. It does not open them again.
        """


@runtime_checkable
class Persistent(Protocol):
    """Records that stay when the process ends, and may have been made by an earlier one."""

    async def exists(self) -> bool:
        """Return whether the store was made, by any process. Unlike the other calls, this does not make it.

        Raises:
            ApiError: 503, the store does not answer.
        """
        ...


@runtime_checkable
class Snapshots(Protocol):
    """Records whose rows can be read as they are at one moment, while others write."""

    def snapshot(self) -> AsyncGenerator[Sequence[Put]]:
        """Yield all rows that have not expired, in batches of a few megabytes.

        Raises:
            ApiError: 503, the store does not answer, or another snapshot is being read.
        """
        ...


@runtime_checkable
class Configured(Protocol):
    """Records on a server whose settings decide whether it keeps what was committed."""

    async def losses(self) -> Mapping[str, str] | None:
        """Return how the server may lose records that were committed, and what to set, by the kind of the loss.

        Returns:
            None if the server does not say.

        Raises:
            ApiError: 503, the store does not answer.
        """
        ...


@runtime_checkable
class Limited(Protocol):
    """Records whose place may become full."""

    async def free(self) -> int | None:
        """Return the bytes that can still be stored, roughly; None if that is unknown, or without a limit.

        Raises:
            ApiError: 503, the store does not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How much records hold.

    Attributes:
        rows: their number, with those that have expired and are not deleted yet.
        size: the bytes that they take, estimated from a sample; None if this user may not ask.
        replicas: the addresses of the servers with copies; None if this user may not ask.
    """

    rows: int
    size: int | None
    replicas: Sequence[str] | None


@runtime_checkable
class Occupied(Protocol):
    """Records that know how much they hold, without reading all of it."""

    @property
    def hash_slot(self) -> int | None:
        """Their slot in a cluster; None in another server."""
        ...

    async def server(self) -> str:
        """Return the address of the server with them.

        Raises:
            ApiError: 503, no server says so.
        """
        ...

    async def occupancy(self) -> Occupancy:
        """Return how much they hold.

        Raises:
            ApiError: 503, the store does not answer.
        """
        ...


@runtime_checkable
class Partitioned(Protocol):
    """Records in several partitions, within each of which a commit is atomic."""

    @property
    def partitions(self) -> int:
        """Their number."""
        ...

    async def range_in(
        self, number: int, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        """Return what `Records.range` does, of one partition."""
        ...

    async def filled_in(self, number: int, ranges: Sequence[tuple[str, str]]) -> list[bool]:
        """Return for each range from a start to an end whether one partition may have rows in it, in one call."""
        ...

    async def ranges_in(
        self, number: int, ranges: Sequence[tuple[str, str]], *, limit: int, reverse: bool = False
    ) -> list[list[tuple[str, Record]]]:
        """Return what `range_in` does for each of several ranges, in one call."""
        ...

    async def apply_noted(self, number: int) -> None:
        """Write in other partitions what commits in this one have to, whose processes died before they did it.

        Raises:
            ApiError: 503, the partition does not answer. What is noted for others that do not stays noted.
        """
        ...


@runtime_checkable
class Replicated(Protocol):
    """Records that may be read before replicas have them."""

    def server_of(self, tag: int) -> str:
        """Return a name of the server with the rows of a tag, as far as it is known; another one after a failover."""
        ...

    async def replicated(self, tag: int, server: str) -> bool:
        """Wait until enough replicas have what can be read of the rows of a tag, and of all others on their server.

        Args:
            server: what `server_of` returned before the reading.

        Returns:
            Whether that is what was read: False if another server has the rows by now. It may lack what was read.

        Raises:
            ApiError: 503, not enough of them have it in time.
        """
        ...


async def read_replicated[Found](
    records: Records, tag: int, read: Callable[[], Awaitable[Found]], needs: Callable[[Found], bool]
) -> Found:
    """Return what is read of the rows of a tag, once it is not lost with one server.

    Args:
        read: reads it, several times if servers fail meanwhile.
        needs: returns whether what was read must not be lost; else it is returned at once.

    Raises:
        ApiError: 503, not enough replicas have it in time.
    """
    while True:
        server = server_of(records, tag)
        found = await read()
        if not needs(found) or await replicated(records, tag, server):
            return found


async def read_all_replicated[Found](
    records: Records, read: Callable[[], Awaitable[Found]], needs: Callable[[Found], bool]
) -> Found:
    """Return what is read of rows of all tags, as `read_replicated`: each server is waited for once."""
    tags = range(partitions_of(records))
    while True:
        servers = [server_of(records, tag) for tag in tags]
        found = await read()
        if not needs(found):
            return found
        one_of_each = dict(zip(servers, tags, strict=True))
        are_there = [await replicated(records, tag, server) for server, tag in one_of_each.items()]
        if all(are_there) and servers == [server_of(records, tag) for tag in tags]:
            return found


async def find_replicated[Found](
    records: Records, tag: int, find: Callable[[], Awaitable[Found | None]]
) -> Found | None:
    """Return what is found in the rows of a tag; None only if it does not come back with another server.

    Raises:
        ApiError: as from `read_replicated`.
    """
    return await read_replicated(records, tag, find, lambda found: found is None)


def server_of(records: Records, tag: int) -> str:
    """Return what `Replicated` says; empty for records without replicas."""
    return records.server_of(tag) if isinstance(records, Replicated) else ""


async def replicated(records: Records, tag: int, server: str) -> bool:
    """Do what `Replicated` says; records without replicas have what was read."""
    return not isinstance(records, Replicated) or await records.replicated(tag, server)


@runtime_checkable
class Ranged(Protocol):
    """Records that read several ranges in one call."""

    async def filled(self, ranges: Sequence[tuple[str, str]]) -> list[bool]:
        """Return for each range from a start to an end whether it has rows, of which some may have expired."""
        ...

    async def ranges(
        self, ranges: Sequence[tuple[str, str]], *, limit: int, reverse: bool = False
    ) -> list[list[tuple[str, Record]]]:
        """Return what `range` does for each range from a start to an end; a row of several is sent once."""
        ...


@runtime_checkable
class Floored(Protocol):
    """Records that say in one call what is before the keys that are missing."""

    async def get_or_floors(
        self, keys: Sequence[str], floors: Mapping[str, tuple[str, str]], *, max_bytes: int | None = None
    ) -> dict[str, Record]:
        """Return the records of those keys that exist, and of others the last record of a range, of the same moment.

        Args:
            floors: the start and the end of the range, by the key, in whose partition it is.
            max_bytes: as in `get_many`, in each partition, without the records of ranges.
        """
        ...


async def get_or_floors(
    records: Records, keys: Sequence[str], floors: Mapping[str, tuple[str, str]], *, max_bytes: int | None = None
) -> dict[str, Record]:
    """Return what `Floored` says, in one call if the records are that."""
    if isinstance(records, Floored):
        return await records.get_or_floors(keys, floors, max_bytes=max_bytes)
    return await get_by_calls(records, keys, floors, max_bytes=max_bytes)


async def get_by_calls(
    records: Records, keys: Sequence[str], floors: Mapping[str, tuple[str, str]], *, max_bytes: int | None = None
) -> dict[str, Record]:
    """Return what `Floored` says, in three calls: of a row that moves from a range to its key meanwhile, both."""
    found = await records.get_many(keys, max_bytes=max_bytes)
    if max_bytes is not None and bytes_of(found.values()) >= max_bytes:
        keys = keys[: max(map(keys.index, found))]
    missing = [key for key in keys if key in floors and key not in found]
    spans = dict.fromkeys(floors[key] for key in missing)
    last = await asyncio.gather(*(records.range(*span, limit=1, reverse=True) for span in spans))
    moved = await records.get_many(missing, max_bytes=max_bytes) if missing else {}
    return {**dict(row for rows in last for row in rows), **found, **moved}


async def range_in(
    records: Records,
    number: int,
    start: str,
    end: str,
    *,
    limit: int,
    reverse: bool = False,
    max_bytes: int | None = None,
) -> list[tuple[str, Record]]:
    """Return a range of one partition of records, which is 0 for those that have no partitions."""
    if isinstance(records, Partitioned):
        return await records.range_in(number, start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)
    return await records.range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)


async def filled_in(records: Records, number: int, ranges: Sequence[tuple[str, str]]) -> list[bool]:
    """Return for each range whether one partition of records may have rows in it, as `range_in`."""
    if isinstance(records, Partitioned):
        return await records.filled_in(number, ranges)
    if isinstance(records, Ranged):
        return await records.filled(ranges)
    return [bool(await records.range(*each, limit=1)) for each in ranges]


async def ranges_in(
    records: Records, number: int, ranges: Sequence[tuple[str, str]], *, limit: int, reverse: bool = False
) -> list[list[tuple[str, Record]]]:
    """Return several ranges of one partition of records, as `range_in`: in one call, if the records can do that."""
    if isinstance(records, Partitioned):
        return await records.ranges_in(number, ranges, limit=limit, reverse=reverse)
    if isinstance(records, Ranged):
        return await records.ranges(ranges, limit=limit, reverse=reverse)
    found = list[list[tuple[str, Record]]]()
    for some in batched(ranges, _INLINE_RANGES):
        found += [await records.range(*each, limit=limit, reverse=reverse) for each in some]
        await asyncio.sleep(0)  # a store that reads in the event loop has not let others go on
    return found


async def apply_noted(records: Records, number: int) -> None:
    """Write in other partitions what commits in this one have to, as `Partitioned.apply_noted`."""
    if isinstance(records, Partitioned):
        await records.apply_noted(number)


def partitions_of(records: object) -> int:
    """Return the number of partitions of records."""
    return records.partitions if isinstance(records, Partitioned) else 1


@runtime_checkable
class Inspected(Protocol):
    """Records in a file that may be damaged."""

    async def damage(self) -> str:
        """Return what is damaged, for an operator, without anything that is stored; empty if nothing was found.

        The first call inspects the whole file, in a limited time. Later ones tell what calls have met since.
        """
        ...


@runtime_checkable
class Moving(Protocol):
    """Records that move idle responses, and items of conversations, to another place, and bring them back when read."""

    @property
    def unmoved(self) -> Records:
        """The records without what is at the other place. There, a response's record is unreadable."""
        ...

    @property
    def as_moved(self) -> Records:
        """The records with rows that stand for what is at the other place, where that stays."""
        ...

    def reader(self) -> Records:
        """Return the records for reading many responses: moved ones are read where they are, and stay there."""
        ...

    async def packed(self, response_id: str) -> tuple[Owner, str] | None:
        """Return the owner of a response that is at the other place, and its position in their list; None if not."""
        ...

    async def forget(self, response_id: str, ops: Sequence[Op], conditions: Sequence[Condition]) -> bool:
        """Delete a response that is at the other place, without reading it there, in one commit with `ops`.

        Returns:
            False if it is not at the other place; nothing was written.

        Raises:
            Conflict: one of `conditions` does not hold.
        """
        ...

    async def forget_items(self, conversation_id: str) -> None:
        """Delete the items of a deleted conversation that are at the other place, without reading them there.

        What else the store has of these items, such as the rows that find them, is left to the caller.
        """
        ...


def unmoved(records: Records) -> Records:
    """Return the records without what is at another place."""
    return records.unmoved if isinstance(records, Moving) else records


def as_moved(records: Records) -> Records:
    """Return the records with rows that stand for what is at another place, where that stays."""
    return records.as_moved if isinstance(records, Moving) else records


def reader_of(records: Records) -> Records:
    """Return the records for reading many responses, so that these stay where they are."""
    return records.reader() if isinstance(records, Moving) else records


async def committed(records: Records, ops: Sequence[Op], conditions: Sequence[Condition]) -> bool:
    """Commit if the conditions hold; return whether they did."""
    try:
        await records.commit(ops, conditions)
    except Conflict:
        return False
    return True


CLOSED: Final = "The response store is closed: the server is shutting down."
UNREACHABLE: Final = "The response store's server cannot be reached."
SILENT: Final = "The response store's server does not answer."
NO_PRIMARY: Final = "The response store's cluster has no primary for these responses."
NO_SENTINEL: Final = (
    "The response store's Sentinels cannot be reached, present a certificate that is not trusted, or know no primary "
    "of its service."
)
AWAY: Final = frozenset({UNREACHABLE, SILENT, NO_PRIMARY, NO_SENTINEL})
"""Errors for a server that may not run, or not at this address."""

UNTRUSTED: Final = (
    "The response store's server presents a certificate that is not trusted or is for another host: "
    "check the name of its host, and the authority that the store's url trusts."
)
"""Error for a server whose certificate cannot be verified."""


def bytes_of(records: Iterable[Record]) -> int:
    """Return the total size of their values in bytes, which `max_bytes` limits."""
    return sum(len(record.value) for record in records)


def until(rows: Iterable[tuple[str, Record]], max_bytes: int | None) -> Iterator[tuple[str, Record]]:
    """Yield rows until their values reach `max_bytes` in total; consume no further row."""
    size = 0
    for key, record in rows:
        yield key, record
        size += len(record.value)
        if max_bytes is not None and size >= max_bytes:
            return


def after_prefix(prefix: str) -> str:
    """Return the first key after all keys that begin with `prefix`: the `end` of their range."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def pages_of(
    records: Records, prefix: str, size: int = 500, max_bytes: int | None = None
) -> AsyncIterator[list[tuple[str, Record]]]:
    """Yield all rows under a prefix, ordered by key, at most `size` at a time; `max_bytes` is as in `range`."""
    return _pages(partial(records.range, limit=size, max_bytes=max_bytes), prefix)


def pages_in(records: Records, number: int, prefix: str, size: int = 500) -> AsyncIterator[list[tuple[str, Record]]]:
    """Yield all rows of one partition under a prefix, as `pages_of`."""
    return _pages(partial(range_in, records, number, limit=size), prefix)


async def _pages(
    read: Callable[[str, str], Awaitable[Sequence[tuple[str, Record]]]], prefix: str
) -> AsyncIterator[list[tuple[str, Record]]]:
    start = prefix
    while rows := await read(start, after_prefix(prefix)):
        yield list(rows)
        start = rows[-1][0] + "\0"


async def pages_of_keys(
    records: Records, keys: Sequence[str], size: int, max_bytes: int
) -> AsyncIterator[dict[str, Record]]:
    """Yield the records of those keys that exist, at most `size` keys at a time; `max_bytes` is as in `get_many`."""
    while keys:
        some = keys[:size]
        found = await records.get_many(some, max_bytes=max_bytes)
        yield found
        # A read that has ended with its bytes goes on behind the last key that it has found.
        is_cut = bytes_of(found.values()) >= max_bytes
        keys = keys[max(map(some.index, found)) + 1 if is_cut else len(some) :]


def writes_of(ops: Sequence[Op]) -> list[Write]:
    """Return the ops of a commit that write, in order."""
    return [op for op in ops if not isinstance(op, Notify)]


def begins_to_free(writes: Sequence[Write]) -> bool:
    """Return whether a store that is full by its memory takes a commit with these writes.

    It does if the commit begins with a deletion, or is needed for one.
    """
    begins = bool(writes) and isinstance(writes[0], Delete)
    return begins or any(isinstance(write, Put) and write.uses_reserve for write in writes)


def woken_by(ops: Sequence[Op]) -> list[str]:
    """Return the names that a commit notifies, each once."""
    return list(dict.fromkeys(op.name for op in ops if isinstance(op, Notify)))
