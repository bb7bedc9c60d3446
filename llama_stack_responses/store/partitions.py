"""Records in several partitions, each of which is a store of its own.

A commit is atomic in the partition of its conditions. What it writes elsewhere is noted there in the same commit
(`ob/<id>`), and applied afterwards: at once, or, if this process dies before, by a worker that looks for what dead ones
have left. A row with the same id (`oa/<id>`), in the partition where it is applied, has it applied once. So a commit
that has returned may show elsewhere a little later, but is never lost, and never applied twice.

Rows that are of no use without a later commit come first: that an owner has responses with a tag (`up/<of>/<tag>`).
Nothing writes them a second time, so a process writes those again that a primary may have taken with it when it died.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import merge
from itertools import islice
from math import inf
from typing import Any, Final, Protocol, runtime_checkable

from ..concurrency.tasks import answers_of, end_all
from ..core.errors import ApiError
from ..core.ids import tag_of
from ..core.lru_cache import LruCache
from ..logs import get_logger
from . import codec
from .commit_deadline import APPLIED_SECONDS
from .layout import OUTBOX, TAGS_OF_OWNER, with_tag
from .records import (
    UNAVAILABLE,
    Condition,
    Configured,
    Conflict,
    Delete,
    Ensure,
    Limited,
    Notify,
    Op,
    Persistent,
    PubSub,
    Put,
    Record,
    Records,
    Snapshots,
    VersionIs,
    Write,
    after_prefix,
    filled_in,
    get_or_floors,
    ranges_in,
    read_replicated,
    replicated,
    server_of,
    until,
)
from .routing import home_of_range, owner_of_range, tag_of_key, tag_of_op, tag_of_range

logger = get_logger(__name__)

_APPLIED: Final = "oa/"
_APPLIED_SECONDS: Final = 7 * 86_400.0
_LATE_SECONDS: Final = 4 * APPLIED_SECONDS
"""Seconds after the deletion of a note until no process applies it any more: none begins to once what it knows of the
note is as old as `APPLIED_SECONDS`, and then it asks for the time and sends a commit at most twice.
"""
_AT_ONCE: Final = 100
_AWAY_SECONDS: Final = 5.0
"""Seconds for which no request waits for a partition that did not answer, to write there what can wait."""
_REOPEN_SECONDS: Final = 2.0
"""Interval in which notifications are subscribed to again of partitions that are away."""
_KNOWN: Final = 100_000
KNOWN_SECONDS: Final = 5.0
"""How many rows about tags are taken to be there, and for how long: the deletion of an owner deletes them."""
_REWRITTEN: Final = 256
"""Rows about tags that are written again in a partition after a failover: replicas are behind by a moment."""
_LOOK_SECONDS: Final = 2.0
"""Interval in which commits look whether partitions have another primary."""


@runtime_checkable
class Numbered(Protocol):
    """A first partition that knows with how many the store was made."""

    async def made_with(self, number: int, *, makes: bool) -> int | None:
        """Return with how many partitions the store was made; None if it is not made yet.

        Args:
            makes: make it with this number if it is not made yet and there are several.

        Raises:
            ApiError: 503, the store does not answer.
        """
        ...


@runtime_checkable
class Placed(Protocol):
    """A partition that may be on the same server as others."""

    async def server(self) -> str:
        """Return the address of the server.

        Raises:
            ApiError: 503, no server says so.
        """
        ...


@runtime_checkable
class Joining(Placed, Protocol):
    """A partition that can receive its notifications over the connection of another one on the same server."""

    async def pubsub_over(self, connection: PubSub) -> PubSub:
        """Receive them there, and return what subscribes to them.

        Raises:
            ApiError: 503, the connection is lost.
        """
        ...


@dataclass(slots=True)
class _LastTags:
    """What was written last in a partition of the rows about tags, and its primary then; empty if that is not known."""

    server: str
    ops: deque[Ensure] = field(default_factory=lambda: deque(maxlen=_REWRITTEN))


class PartitionedRecords:
    """Records in partitions.

    Args:
        parts: the partitions, in order; their number never changes.
    """

    def __init__(self, parts: Sequence[Records]) -> None:
        self._parts = parts
        self.partitions: Final = len(parts)
        """The number of partitions."""
        self._checked = False
        self._clock = 0
        self._away: dict[int, float] = {}
        self._known: LruCache[str, float] = LruCache(_KNOWN)
        self._last_tags: dict[int, _LastTags] = {}
        self._look_at = 0.0
        self._marks: dict[int, deque[tuple[float, str]]] = {}

    @property
    def parts(self) -> Sequence[Records]:
        """The partitions, in order."""
        return self._parts

    @property
    def transactional(self) -> bool:
        """Whether commits are atomic."""
        return self._parts[0].transactional

    @property
    def has_own_clock(self) -> bool:
        """Whether `now` is the clock of a server."""
        return self._parts[0].has_own_clock

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        await self._check()
        of_parts = self._by_part(keys)
        if len(of_parts) == 1:
            [number] = of_parts
            return await self._parts[number].get_many(keys, max_bytes=max_bytes)
        found: dict[str, Record] = {}
        calls = (self._parts[number].get_many(some, max_bytes=max_bytes) for number, some in of_parts.items())
        for records in await _all(calls):
            found |= records
        return dict(until(((key, found[key]) for key in dict.fromkeys(keys) if key in found), max_bytes))

    async def get_or_floors(
        self, keys: Sequence[str], floors: Mapping[str, tuple[str, str]], *, max_bytes: int | None = None
    ) -> dict[str, Record]:
        """Return what `Floored` says, of one moment in each partition."""
        await self._check()
        calls = (
            get_or_floors(self._parts[number], some, floors, max_bytes=max_bytes)
            for number, some in self._by_part(keys).items()
        )
        return {key: record for records in await _all(calls) for key, record in records.items()}

    def server_of(self, tag: int) -> str:
        """Return what `Replicated` says."""
        return server_of(self._parts[self._number(tag)], tag)

    async def replicated(self, tag: int, server: str) -> bool:
        """Wait as `Replicated` says."""
        return await replicated(self._parts[self._number(tag)], tag, server)

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        await self._check(makes=True)
        await self._rewrite_tags()
        home = self._home(ops, conditions)
        here, first, elsewhere = list[Op](), list[tuple[int, Ensure]](), defaultdict[int, list[Op]](list)
        for op in ops:
            number = self._part_of(op)
            if number == home:
                here.append(op)
            elif isinstance(op, Ensure) and op.key.startswith(TAGS_OF_OWNER):
                first.append((number, op))
            else:
                elsewhere[number].append(op)
        for number, op in first:
            if not await self._first(number, op):
                elsewhere[number].append(op)
        await self._commit(home, here, conditions, elsewhere)

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        await self._check()
        numbers = await self._parts_of_range(start, end)
        calls = (
            self._parts[number].range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)
            for number in numbers
        )
        rows = await _all(calls)
        if len(rows) == 1:
            return rows[0]
        # A part that ended at a limit ends the whole: what it has read reaches the limit by itself.
        merged = merge(*rows, key=lambda row: row[0], reverse=reverse)
        return list(islice(until(merged, max_bytes), max(limit, 0)))

    async def range_in(
        self, number: int, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        """Return what `range` does, of one partition."""
        await self._check()
        return await self._parts[number].range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)

    async def filled_in(self, number: int, ranges: Sequence[tuple[str, str]]) -> list[bool]:
        """Return for each range whether one partition may have rows in it."""
        await self._check()
        return await filled_in(self._parts[number], 0, ranges)

    async def ranges_in(
        self, number: int, ranges: Sequence[tuple[str, str]], *, limit: int, reverse: bool = False
    ) -> list[list[tuple[str, Record]]]:
        """Return several ranges of one partition."""
        await self._check()
        return await ranges_in(self._parts[number], 0, ranges, limit=limit, reverse=reverse)

    async def apply_noted(self, number: int) -> None:
        """Apply what was noted in one partition by processes that died before they applied it.

        What a primary has alone is not applied. It may be lost with the primary, and its commit is made again then,
        with another note.
        """
        part, start, is_last = self._parts[number], OUTBOX, False
        while not is_last:
            until = _apply_until()
            page = partial(part.range, start, after_prefix(OUTBOX), limit=_AT_ONCE)
            rows = await read_replicated(part, number, page, bool)
            is_last = len(rows) < _AT_ONCE
            for note, record in rows:
                there, ops = codec.decode(record.value)
                await self._try_elsewhere(number, note, there, [_decoded(op) for op in ops], until)
                start = f"{note}\0"

    def pubsub(self) -> AbstractAsyncContextManager[PubSub] | None:
        """Receive the notifications of all partitions, over one connection to each server that a name needs."""
        if self.partitions == 1:
            return self._parts[0].pubsub()
        return _opened(self._parts) if self._parts[0].pubsub() is not None else None

    async def now(self) -> float:
        """Return the time of the clock of a partition; if that does not answer, of the next ones."""
        for _ in range(self.partitions - 1):
            with suppress(ApiError):
                return await self._parts[self._clock].now()
            self._clock = (self._clock + 1) % self.partitions
        return await self._parts[self._clock].now()

    async def sweep(self, now: float) -> int:
        if self.partitions > 1:
            for number in range(self.partitions):
                with suppress(ApiError):  # another sweep applies it
                    await self.apply_noted(number)
        return sum(await _all(part.sweep(now) for part in self._parts))

    async def size(self) -> int | None:
        sizes = [size for size in await _all(part.size() for part in await self._of_servers()) if size is not None]
        return sum(sizes) if sizes else None

    async def free(self) -> int | None:
        """Return the bytes that can still be stored on the fullest server; None if unknown, or without a limit."""
        parts = [part for part in await self._of_servers() if isinstance(part, Limited)]
        return min((free for free in await _all(part.free() for part in parts) if free is not None), default=None)

    async def losses(self) -> Mapping[str, str] | None:
        """Return how any of the servers may lose records, as `Configured`."""
        parts = [part for part in await self._of_servers() if isinstance(part, Configured)]
        known = await _all(part.losses() for part in parts)
        found = {kind: what for losses in known for kind, what in (losses or {}).items()}
        return found if found or None not in known else None

    async def _of_servers(self) -> list[Records]:
        """Return a partition on each server that has some."""
        if self.partitions == 1:
            return list(self._parts)
        servers = await _all(part.server() for part in self._parts if isinstance(part, Placed))
        return list(dict(zip(servers, self._parts, strict=True)).values()) if servers else [self._parts[0]]

    async def exists(self) -> bool:
        """Return whether any partition was made that answers.

        Raises:
            ApiError: 503, none was, and some do not answer.
        """
        answers = await answers_of(_exists(part) for part in self._parts)
        if True not in answers and (failures := [each for each in answers if isinstance(each, ApiError)]):
            raise failures[0]
        return True in answers

    async def snapshot(self) -> AsyncGenerator[Sequence[Put]]:
        """Yield all rows, those of each partition as they are at one moment."""
        await self._check()
        for part in self._parts:
            if isinstance(part, Snapshots):
                async with aclosing(part.snapshot()) as rows:
                    async for batch in rows:
                        yield batch

    async def close(self) -> None:
        for part in self._parts:
            await part.close()

    async def _check(self, *, makes: bool = False) -> None:
        """Check the number of partitions until the store is made, and make it with this number.

        Raises:
            ApiError: 503, it was made with another number; or the store does not answer.
        """
        if self._checked:
            return
        if isinstance(self._parts[0], Numbered):
            made = await self._parts[0].made_with(self.partitions, makes=makes)
            if made is None:
                return
            if made != self.partitions:
                raise ApiError(
                    UNAVAILABLE,
                    f"The response store was made with {made} partitions, and its settings have {self.partitions}: set "
                    f"'partitions' of the store to {made}, or another 'prefix'.",
                )
        self._checked = True

    def _number(self, tag: int) -> int:
        return tag % self.partitions

    def _part_of(self, op: Op) -> int:
        return self._number(tag_of_op(op))

    def _by_part(self, keys: Sequence[str]) -> Mapping[int, list[str]]:
        if self.partitions == 1:
            return {0: list(keys)}
        of_parts = defaultdict[int, list[str]](list)
        for key in keys:
            of_parts[self._number(tag_of_key(key))].append(key)
        return of_parts or {0: []}

    def _home(self, ops: Sequence[Op], conditions: Sequence[Condition]) -> int:
        """Return the partition of a commit's conditions; without any, that of its first write."""
        if self.partitions == 1:
            return 0
        tags = (
            tag_of_key(each.key)
            if isinstance(each, VersionIs)
            else tag_of_range(each.prefix, after_prefix(each.prefix))
            for each in conditions
        )
        homes = {self._number(tag) for tag in tags if tag is not None}
        if len(homes) > 1:
            raise RuntimeError(f"the conditions of a commit are in several partitions: {conditions}")
        written = (op for op in ops if not isinstance(op, Notify) and not op.key.startswith(TAGS_OF_OWNER))
        return homes.pop() if homes else next(map(self._part_of, written), 0)

    async def _parts_of_range(self, start: str, end: str) -> Sequence[int]:
        if self.partitions == 1:
            return [0]
        tag = tag_of_range(start, end)
        if tag is not None:
            return [self._number(tag)]
        home = home_of_range(start, end)
        if home is not None:
            return sorted({0, self._number(home)})
        if of := owner_of_range(start, end):
            used = f"{TAGS_OF_OWNER}{of}/"
            rows = await self._parts[self._number(tag_of_key(used))].range(used, after_prefix(used), limit=4096)
            return sorted({0, *(self._number(int(key[-3:], 16)) for key, _ in rows)})
        return range(self.partitions)

    async def _first(self, number: int, op: Ensure) -> bool:
        """Write a row in another partition before the commit that uses it; return False if that partition is away."""
        loop = asyncio.get_running_loop()
        if (self._known.get(op.key) or -inf) >= loop.time() - KNOWN_SECONDS:
            return True
        last = self._last_tags.setdefault(number, _LastTags(self.server_of(number)))
        if not await self._try(number, partial(self._parts[number].commit, [op])):
            return False
        last.ops.append(op)
        self._known.set(op.key, loop.time())
        return True

    async def _rewrite_tags(self) -> None:
        """Write the last rows about tags again where another server is the primary now: it may lack them."""
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        for number, last in list(self._last_tags.items()):
            server = self.server_of(number) or last.server
            is_same = server == (last.server or server)
            if is_same or await self._try(number, partial(self._parts[number].commit, list(dict.fromkeys(last.ops)))):
                last.server = server

    async def _try(self, number: int, write: Callable[[], Awaitable[None]]) -> bool:
        """Write what can wait in a partition, unless it did not answer a moment ago; return whether it is written.

        After that moment, one request tries again, and others still do not wait for it.
        """
        now = asyncio.get_running_loop().time()
        if self._away.get(number, -inf) > now - _AWAY_SECONDS:
            return False
        if number in self._away:
            self._away[number] = now
        try:
            await write()
        except ApiError:
            self._away[number] = asyncio.get_running_loop().time()
            return False
        self._away.pop(number, None)
        return True

    async def _commit(
        self, home: int, here: list[Op], conditions: Sequence[Condition], elsewhere: Mapping[int, Sequence[Op]]
    ) -> None:
        notes = dict[int, str]()
        for number, ops in elsewhere.items():
            if writes := [op for op in ops if not isinstance(op, Notify)]:
                notes[number] = with_tag(f"{OUTBOX}{secrets.token_hex(12)}", home)
                here.append(Put(notes[number], codec.encode([number, [_encoded(op) for op in writes]])))
        until = _apply_until()
        if here or conditions:
            await self._parts[home].commit(here, conditions)
            self._away.pop(home, None)
        for number, ops in elsewhere.items():
            await self._try_elsewhere(home, notes.get(number), number, ops, until)

    async def _try_elsewhere(self, home: int, note: str | None, number: int, ops: Sequence[Op], until: float) -> None:
        """Apply what a commit writes in another partition, unless that is away, or it is too late.

        Args:
            until: when what is known of the note is too old. Another process may have applied and deleted it long ago.
        """
        if note is None:
            await self._try(number, partial(self._parts[number].commit, ops))
        elif asyncio.get_running_loop().time() <= until:
            await self._try(number, partial(self._apply, home, note, number, ops))

    async def _apply(self, home: int, note: str, number: int, ops: Sequence[Op]) -> None:
        """Apply what was noted, unless it is applied, and delete the note, or leave it to others who find it."""
        part, loop = self._parts[number], asyncio.get_running_loop()
        mark, now = _mark(note, number), await part.now()
        with suppress(Conflict):
            await part.commit(
                [*ops, Put(mark, b"", now + _APPLIED_SECONDS), *self._old_marks(number, loop.time())],
                [VersionIs(mark, None)],
            )
        with suppress(ApiError):
            await self._parts[home].commit([Delete(note)])
            # A process that has read the note may still try to apply it.
            self._marks.setdefault(number, deque()).append((loop.time() + _LATE_SECONDS, mark))

    def _old_marks(self, number: int, now: float) -> list[Op]:
        """Return the ops that delete marks of a partition whose notes are long deleted; `now` is of the event loop."""
        marks, deletes = self._marks.get(number, deque[tuple[float, str]]()), list[Op]()
        while marks and marks[0][0] < now:
            deletes.append(Delete(marks.popleft()[1]))
        return deletes


def _apply_until() -> float:
    """Return until when a note may be applied that is read or written from now on, as of the event loop's clock."""
    return asyncio.get_running_loop().time() + APPLIED_SECONDS


def _encoded(op: Write) -> list[Any]:
    """Return a write as JSON."""
    match op:
        case Delete():
            return [op.key]
        case Put() | Ensure():
            return [op.key, op.value.decode("latin-1"), op.expires_at, isinstance(op, Ensure)]


def _decoded(stored: list[Any]) -> Write:
    if len(stored) == 1:
        return Delete(stored[0])
    key, value, expires_at, is_ensured = stored
    return (Ensure if is_ensured else Put)(key, value.encode("latin-1"), expires_at)


@asynccontextmanager
async def _opened(parts: Sequence[Records]) -> AsyncIterator[PubSub]:
    async with AsyncExitStack() as opened:
        pubsubs = _PubSubs(parts, opened)
        try:
            yield pubsubs
        finally:
            await pubsubs.stop()


class _PubSubs:
    """Receives the notifications of several partitions.

    Those that are away are tried again: none of their names is returned meanwhile, and all other ones are.

    Args:
        opened: closes what is opened.
    """

    def __init__(self, parts: Sequence[Records], opened: AsyncExitStack) -> None:
        self._parts, self._opened = parts, opened
        self._pubsubs: dict[int, PubSub] = {}
        self._of_servers: dict[str, PubSub] = {}
        self._wanted: dict[int, set[str]] = {}  # names in partitions that are not open
        self._received = asyncio.Queue[str | ApiError]()
        self._tasks = list[asyncio.Task[None]]()
        self._opening: asyncio.Task[None] | None = None

    async def subscribe(self, names: Collection[str]) -> None:
        new = list[int]()
        for number, some in self._by_part(names).items():
            if number in self._pubsubs:
                await self._pubsubs[number].subscribe(some)
            elif number in self._wanted:
                self._wanted[number].update(some)
            else:
                self._wanted[number] = {*some}
                new.append(number)
        if failure := await self._open_all(new):
            if not self._pubsubs:
                raise failure
            logger.warning("a part of the store sends no notifications, polling it: %s", failure)
            if self._opening is None or self._opening.done():
                self._opening = asyncio.create_task(self._open_rest(), name="notifications of what is away")

    async def unsubscribe(self, names: Collection[str]) -> None:
        for number, some in self._by_part(names).items():
            if number in self._pubsubs:
                await self._pubsubs[number].unsubscribe(some)
            elif number in self._wanted:
                self._wanted[number].difference_update(some)

    async def receive(self) -> str:
        received = await self._received.get()
        if isinstance(received, ApiError):
            raise received
        return received

    async def stop(self) -> None:
        """End the tasks that receive, and the one that opens what is away."""
        await end_all([*self._tasks, *([self._opening] if self._opening else [])])

    async def _open_all(self, numbers: Collection[int]) -> ApiError | None:
        """Subscribe in partitions to the names that are wanted there; return why one that is away does not answer.

        A server that does not answer for one partition is not asked for the others.

        Raises:
            ApiError: 503, a connection is lost.
        """
        failures = dict[str, ApiError]()
        for number in numbers:
            part, server = self._parts[number], f"{number}"
            try:
                if isinstance(part, Placed):
                    server = await part.server()
                if server in failures:
                    continue
                pubsub = await self._joined(part) or await self._open(number)
            except ApiError as error:
                failures[server] = error
                continue
            self._pubsubs[number] = pubsub
            await pubsub.subscribe(self._wanted.pop(number))
        return next(iter(failures.values()), None)

    async def _open_rest(self) -> None:
        """Try again to open what is away, until nothing is."""
        try:
            while self._wanted:
                await asyncio.sleep(_REOPEN_SECONDS)
                await self._open_all([*self._wanted])
        except ApiError as error:
            self._received.put_nowait(error)
            return
        logger.info("all parts of the store send notifications again")

    async def _joined(self, part: Records) -> PubSub | None:
        """Return what receives the notifications of a partition if there is a connection to its server."""
        if isinstance(part, Joining) and (connection := self._of_servers.get(await part.server())):
            return await part.pubsub_over(connection)
        return None

    async def _open(self, number: int) -> PubSub:
        part = self._parts[number]
        opening = part.pubsub()
        assert opening
        opened = await self._opened.enter_async_context(opening)
        self._tasks.append(asyncio.create_task(self._receive(opened), name=f"notifications {number}"))
        if isinstance(part, Joining):
            self._of_servers[await part.server()] = opened  # which may have changed with what opening it has learned
        return opened

    async def _receive(self, pubsub: PubSub) -> None:
        try:
            while True:
                self._received.put_nowait(await pubsub.receive())
        except ApiError as error:
            self._received.put_nowait(error)

    def _by_part(self, names: Collection[str]) -> Mapping[int, list[str]]:
        of_parts = defaultdict[int, list[str]](list)
        for name in names:
            of_parts[tag_of(name) % len(self._parts)].append(name)
        return of_parts


async def _exists(part: Records) -> bool:
    return await part.exists() if isinstance(part, Persistent) else True


async def _all[Result](calls: Iterable[Awaitable[Result]]) -> list[Result]:
    """Return the results of calls that run at the same time, once all have ended; raise the first error."""
    waiting = list(calls)
    if len(waiting) == 1:
        return [await waiting[0]]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    for each in results:
        if isinstance(each, BaseException):
            raise each
    return results  # type: ignore[return-value]


def _mark(note: str, number: int) -> str:
    """Return the key of the row which says that a note was applied in a partition."""
    return with_tag(_APPLIED + note.removeprefix(OUTBOX), number)


def noted(note: str, value: bytes) -> tuple[str, list[Write]]:
    """Return the key of the row which says that a note was applied, and the writes that were noted."""
    number, ops = codec.decode(value)
    return _mark(note, number), [_decoded(op) for op in ops]
