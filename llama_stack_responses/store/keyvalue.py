"""Records in a store that knows single keys only: it has no step over several of them and no condition.

Under a prefix lie: `r:KEY`, a line for each record; `e:WHEN/KEY`, for each record that expires; `c:ID`, a commit on its
way; and `o:`, a few keys that show in which order the store has them.

A commit of several keys is first written down as a whole, under one key. Then it counts as made: should the process die
before all of it is in its place, the next to open the store finishes it.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, NamedTuple, Protocol

from llama_stack_responses.logs import get_logger

from ..core.errors import ApiError
from .records import (
    Condition,
    Conflict,
    Delete,
    Ensure,
    Op,
    Record,
    Unanswered,
    VersionIs,
    Write,
    after_prefix,
    writes_of,
)

logger = get_logger(__name__)

_AT_ONCE: Final = 16
_SWEEP: Final = 1000
_LAST: Final = "\x7f"
"""Behind every character of a key."""

_SAMPLES: Final = ("-", ".", "/", "0", ":", "Z", "_", "z", "z" * 40)


class KeyValue(Protocol):
    """What the store offers: the interface of the host's own key-value backends.

    A range need not be ordered, may give a value twice, may have its end in it, and may leave out keys that do not
    begin with its start.
    """

    async def get(self, key: str) -> str | None: ...

    async def set(self, key: str, value: str) -> None: ...

    async def delete(self, key: str) -> None: ...

    async def values_in_range(self, start_key: str, end_key: str) -> list[str]: ...

    async def shutdown(self) -> None: ...


class _Line(NamedTuple):
    """A stored record."""

    key: str
    record: Record
    expires_at: float | None

    def text(self) -> str:
        expiry = "" if self.expires_at is None else repr(self.expires_at)
        return f"{self.record.version} {expiry} {b64encode(self.record.value).decode()} {self.key}"

    @staticmethod
    def read(text: str) -> _Line:
        version, expiry, value, key = text.split(" ", 3)
        return _Line(key, Record(b64decode(value), int(version)), float(expiry) if expiry else None)

    def is_live(self, now: float) -> bool:
        return self.expires_at is None or self.expires_at > now


@dataclass(slots=True)
class _Store:
    """The store in one event loop.

    Attributes:
        turn: held by the commit that is under way.
        several: bounds the gets that are under way.
        unfinished: whether a commit may be written down that is not all in its place.
        broken: whether it has to be connected to anew.
    """

    keys: KeyValue
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    several: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    unfinished: bool = True
    broken: bool = False


class KeyValueRecords:
    """Records for one server process, over a store that only knows how to get and set a key.

    The commits of one process exclude one another, those of two do not: what one drops because nothing refers to it,
    the other may have begun to refer to. A read may see a commit half made, its keys in the order of its ops.

    Args:
        connect: opens the store, in the event loop that then uses it.
        prefix: what all keys begin with.
        clock: seconds since the epoch.
    """

    transactional: Final = False

    def __init__(
        self,
        connect: Callable[[], Awaitable[KeyValue]],
        *,
        prefix: str = "responses:",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._connect = connect
        self._prefix = prefix
        self._clock = clock
        self._id = secrets.token_hex(8)
        self._opening: asyncio.Task[_Store] | None = None

    async def get_many(self, keys: Sequence[str]) -> dict[str, Record]:
        if not keys:
            return {}
        with self._trouble():
            store = await self._ready()
            lines = await self._get(store, keys)
        now = self._clock()
        return {key: line.record for key, line in lines.items() if line.is_live(now)}

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        with self._trouble():
            store = await self._ready()
            async with store.turn:
                await self._finish(store)
                now = self._clock()
                writes = writes_of(ops)
                known = await self._get(store, {each.key for each in (*writes, *_versions(conditions))})
                if failed := [each for each in conditions if not await self._holds(store, each, known, now)]:
                    raise Conflict(failed)
                changes = self._changes(known, writes, now)
                # Part of it may be there by then, and what is written down is made by whoever comes next.
                with self._trouble(Unanswered):
                    await self._make(store, changes)

    async def range(self, start: str, end: str, *, limit: int, reverse: bool = False) -> list[tuple[str, Record]]:
        with self._trouble():
            lines = await self._lines(await self._ready(), start, end)
        return [(line.key, line.record) for line in (lines[::-1] if reverse else lines)[: max(limit, 0)]]

    def watch(self) -> None:
        """The store knows nothing of the kind."""

    async def now(self) -> float:
        return self._clock()

    async def sweep(self, now: float) -> int:
        with self._trouble():
            store = await self._ready()
            rows = await store.keys.values_in_range(f"{self._prefix}e:", f"{self._prefix}e:{_LAST}")
            due = [row for row in rows if float(row.partition(" ")[0]) <= now][:_SWEEP]
            async with store.turn:
                await self._finish(store)
                lines = await self._get(store, [row.partition(" ")[2] for row in due])
                expired = [Delete(line.key) for line in lines.values() if not line.is_live(now)]
                await self._make(store, self._changes(lines, expired, now))
        return len(expired)

    async def close(self) -> None:
        opening, self._opening = self._opening, None
        if opening is None or opening.get_loop() is not asyncio.get_running_loop():
            return
        with suppress(Exception):
            await (await opening).keys.shutdown()

    async def _ready(self) -> _Store:
        """The store in the running loop: what was opened in another, which is gone, may never answer."""
        loop = asyncio.get_running_loop()
        opening = self._opening
        if opening is None or opening.get_loop() is not loop or (opening.done() and _failed(opening)):
            opening = self._opening = loop.create_task(self._open())
        store = await asyncio.shield(opening)
        if store.broken:
            await self._mend(store)
        return store

    async def _mend(self, store: _Store) -> None:
        """Connects anew: what lost its connection may never look for another."""
        async with store.turn:
            if store.broken:
                store.keys = await self._connect()
                store.unfinished = True
                store.broken = False

    @contextmanager
    def _trouble(
        self, made: Callable[[str], ApiError] = lambda said: ApiError(503, said, retry_after=1)
    ) -> Iterator[None]:
        """Makes a 503 of whatever kind of error the store raises."""
        try:
            yield
        except (ApiError, Conflict):
            raise
        except Exception as error:
            opening = self._opening
            if opening is not None and opening.done() and not _failed(opening):
                opening.result().broken = True
            message = f"The response store, a key-value backend of the stack, does not answer ({type(error).__name__})."
            logger.error("%s %s", message, error)
            raise made(message) from error

    async def _open(self) -> _Store:
        store = _Store(await self._connect())
        if not await self._is_ordered(store):
            for sample in _SAMPLES:
                await store.keys.set(f"{self._prefix}o:{sample}", sample)
            if not await self._is_ordered(store):
                raise ApiError(
                    503,
                    "The response store's keys are not in the order of their bytes, as in a database with a locale "
                    "other than C: choose another backend, or the store 'postgres'.",
                )
        async with store.turn:
            await self._finish(store)
        return store

    async def _is_ordered(self, store: _Store) -> bool:
        found = await store.keys.values_in_range(f"{self._prefix}o:", f"{self._prefix}o:{_LAST}")
        return set(found) == set(_SAMPLES)

    async def _get(self, store: _Store, keys: Iterable[str]) -> dict[str, _Line]:
        """What is stored of `keys`, expired or not."""

        async def get(key: str) -> str | None:
            async with store.several:
                return await store.keys.get(f"{self._prefix}r:{key}")

        texts = await asyncio.gather(*map(get, dict.fromkeys(keys)))
        lines = [_Line.read(text) for text in texts if text is not None]
        return {line.key: line for line in lines}

    async def _lines(self, store: _Store, start: str, end: str) -> list[_Line]:
        """The records with start <= key < end, by their keys."""
        if start >= end:
            return []
        shared = f"{self._prefix}r:{_shared(start, end)}"
        texts = await store.keys.values_in_range(shared, shared + _LAST)
        now = self._clock()
        lines = {line.key: line for line in map(_Line.read, texts) if start <= line.key < end and line.is_live(now)}
        return [lines[key] for key in sorted(lines)]

    async def _holds(self, store: _Store, condition: Condition, known: Mapping[str, _Line], now: float) -> bool:
        if isinstance(condition, VersionIs):
            line = known.get(condition.key)
            return (line.record.version if line and line.is_live(now) else None) == condition.version
        lines = await self._lines(store, condition.prefix, after_prefix(condition.prefix))
        return all(line.key == condition.but for line in lines)

    def _changes(self, known: Mapping[str, _Line], ops: Sequence[Write], now: float) -> dict[str, str | None]:
        """What the ops come to: the value of each key of the store that they change, None for a key that goes."""
        lines: dict[str, _Line | None] = {}
        for op in ops:
            old = lines.get(op.key, known.get(op.key))
            live = old if old and old.is_live(now) else None
            lines[op.key] = live if isinstance(op, Ensure) and live else _written(op, live)
        changes: dict[str, str | None] = {}
        for key, line in lines.items():
            old = known.get(key)
            if line is old:
                continue
            if old and old.expires_at is not None:
                changes[self._expiry_row(old)] = None
            changes[f"{self._prefix}r:{key}"] = line.text() if line else None
            if line and line.expires_at is not None:
                changes[self._expiry_row(line)] = f"{line.expires_at!r} {key}"
        return changes

    def _expiry_row(self, line: _Line) -> str:
        return f"{self._prefix}e:{line.expires_at!r}/{line.key}"

    async def _make(self, store: _Store, changes: Mapping[str, str | None]) -> None:
        if len(changes) > 1:
            store.unfinished = True
            await store.keys.set(f"{self._prefix}c:{self._id}", json.dumps([self._id, changes]))
        await self._apply(store, changes)
        if len(changes) > 1:
            await store.keys.delete(f"{self._prefix}c:{self._id}")
            store.unfinished = False

    async def _apply(self, store: _Store, changes: Mapping[str, str | None]) -> None:
        for key, value in changes.items():
            if value is None:
                await store.keys.delete(key)
            else:
                await store.keys.set(key, value)

    async def _finish(self, store: _Store) -> None:
        """Puts what commits were written down in its place; doing so again does no harm."""
        if not store.unfinished:
            return
        for text in await store.keys.values_in_range(f"{self._prefix}c:", f"{self._prefix}c:{_LAST}"):
            of, changes = json.loads(text)
            await self._apply(store, changes)
            await store.keys.delete(f"{self._prefix}c:{of}")
        store.unfinished = False


def _written(op: Write, live: _Line | None) -> _Line | None:
    if isinstance(op, Delete):
        return None
    expires_at = None if op.expires_at is None or math.isinf(op.expires_at) else float(op.expires_at)
    return _Line(op.key, Record(op.value, live.record.version + 1 if live else 1), expires_at)


def _shared(start: str, end: str) -> str:
    """What all keys between the two begin with."""
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(start, end, strict=False)))


def _versions(conditions: Sequence[Condition]) -> list[VersionIs]:
    return [each for each in conditions if isinstance(each, VersionIs)]


def _failed(task: asyncio.Task[_Store]) -> bool:
    return task.cancelled() or task.exception() is not None
