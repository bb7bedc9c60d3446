"""Records that make one call of those that several tasks make at the same time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import batched
from typing import Any, Final

from .codec import TooLarge
from .records import (
    Condition,
    Conflict,
    Empty,
    Op,
    Record,
    Records,
    VersionIs,
    begins_to_free,
    bytes_of,
    pages_of_keys,
    ranges_in,
    until,
    writes_of,
)
from .wrapped import WrappedRecords

_KEYS: Final = 128
_RANGES: Final = 64
_OPS: Final = 200
"""Keys, ranges and ops of one call: what the event loop encodes, and the store works on, in about a millisecond."""
_PAGE_BYTES: Final = 4 * 2**20
_WOKEN: Final = 4
"""Tasks that go on in one iteration of the event loop."""

type _Rows = list[tuple[str, Record]]


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class _Asked[Answer]:
    """A call of a task, which waits for the answer."""

    answer: asyncio.Future[Answer] = field(init=False, default_factory=_future)


@dataclass(slots=True, eq=False)
class _Get(_Asked[dict[str, Record]]):
    keys: Sequence[str]
    max_bytes: int | None


@dataclass(slots=True, eq=False)
class _Ranges(_Asked[list[_Rows]]):
    spans: Sequence[tuple[str, str]]
    limit: int
    reverse: bool


@dataclass(slots=True, eq=False)
class _Commit(_Asked[None]):
    """A commit.

    Attributes:
        frees: whether a full store takes it.
        written: what it writes, by key.
        needed, empty: the keys and prefixes in its conditions.
    """

    ops: Sequence[Op]
    conditions: Sequence[Condition]
    frees: bool = field(init=False)
    written: Mapping[str, list[Op]] = field(init=False)
    needed: Set[str] = field(init=False)
    empty: Set[str] = field(init=False)

    def __post_init__(self) -> None:
        writes, written = writes_of(self.ops), defaultdict[str, list[Op]](list)
        for op in writes:
            written[op.key].append(op)
        self.frees, self.written = begins_to_free(writes), written
        self.needed = {each.key for each in self.conditions if isinstance(each, VersionIs)}
        self.empty = {each.prefix for each in self.conditions if isinstance(each, Empty)}


class MergedRecords(WrappedRecords):
    """Merges the calls that tasks make while an earlier call is under way.

    A commit is as the task would make it alone: those that are merged do not depend on each other, and one whose
    conditions do not hold is left out. Records that are read may be of several moments.

    Args:
        records: the store.
        number: the partition of all that the tasks read and write.
        max_bytes: bytes of values that the tasks may read together.
    """

    def __init__(self, records: Records, number: int, max_bytes: int) -> None:
        super().__init__(records)
        self._number, self._left = number, max_bytes
        self._asked = list[_Asked[Any]]()
        self._work: asyncio.Task[None] | None = None

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        """Read.

        Raises:
            TooLarge: the tasks have read too many bytes.
        """
        return await self._ask(_Get(keys, max_bytes))

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        """Read a range.

        Raises:
            TooLarge: the tasks have read too many bytes.
        """
        [rows] = await self.ranges_in(self._number, [(start, end)], limit=limit, reverse=reverse)
        return list(until(rows, max_bytes))

    async def ranges_in(
        self, number: int, ranges: Sequence[tuple[str, str]], *, limit: int, reverse: bool = False
    ) -> list[list[tuple[str, Record]]]:
        """Read several ranges of the partition.

        Raises:
            TooLarge: the tasks have read too many bytes.
        """
        assert number == self._number
        return await self._ask(_Ranges(ranges, limit, reverse))

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        """Commit."""
        await self._ask(_Commit(ops, conditions))

    async def _ask[Answer](self, asked: _Asked[Answer]) -> Answer:
        self._asked.append(asked)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._answer_all())
        return await asked.answer

    async def _answer_all(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, []
            await self._get([each for each in asked if isinstance(each, _Get)])
            alike = defaultdict[tuple[int, bool], list[_Ranges]](list)
            for each in asked:
                if isinstance(each, _Ranges):
                    alike[each.limit, each.reverse].append(each)
            for ranges in alike.values():
                await self._ranges(ranges)
            commits = [each for each in asked if isinstance(each, _Commit)]
            while commits:
                some, commits = _independent(commits)
                await self._commit(some)
            await asyncio.sleep(0)  # the last tasks ask for more

    async def _get(self, asked: Sequence[_Get]) -> None:
        found = dict[str, Record]()
        try:
            keys = list(dict.fromkeys(key for each in asked for key in each.keys))
            async for some in pages_of_keys(self._records, keys, _KEYS, _PAGE_BYTES):
                self._count(bytes_of(some.values()))
                found |= some
        except Exception as error:  # noqa: BLE001 (the tasks raise it)
            await _fail(asked, error)
            return
        for number, each in enumerate(asked, 1):
            theirs = ((key, found[key]) for key in dict.fromkeys(each.keys) if key in found)
            await _answer(each.answer, dict(until(theirs, each.max_bytes)), number)

    async def _ranges(self, asked: Sequence[_Ranges]) -> None:
        spans = list(dict.fromkeys(span for each in asked for span in each.spans))
        found = dict[tuple[str, str], _Rows]()
        limit, reverse = asked[0].limit, asked[0].reverse
        try:
            for some in batched(spans, _RANGES):
                rows = await ranges_in(self._records, self._number, some, limit=limit, reverse=reverse)
                self._count(sum(len(record.value) for of in rows for _, record in of))
                found |= zip(some, rows, strict=True)
        except Exception as error:  # noqa: BLE001 (the tasks raise it)
            await _fail(asked, error)
            return
        for number, each in enumerate(asked, 1):
            await _answer(each.answer, [found[span] for span in each.spans], number)

    async def _commit(self, asked: Sequence[_Commit]) -> None:
        while asked:
            ops = dict.fromkeys(op for each in asked for op in each.ops)
            conditions = dict.fromkeys(condition for each in asked for condition in each.conditions)
            try:
                await self._records.commit(list(ops), list(conditions))
            except Conflict as conflict:
                failed = frozenset(conflict.failed)
                lost = [each for each in asked if not failed.isdisjoint(each.conditions)]
                for number, each in enumerate(lost, 1):
                    theirs = Conflict([condition for condition in each.conditions if condition in failed])
                    await _answer(each.answer, theirs, number)
                asked = [each for each in asked if failed.isdisjoint(each.conditions)]
            except Exception as error:  # noqa: BLE001 (the tasks raise it)
                await _fail(asked, error)
                return
            else:
                for number, each in enumerate(asked, 1):
                    await _answer(each.answer, None, number)
                return

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLarge


async def _fail(asked: Sequence[_Asked[Any]], error: Exception) -> None:
    for number, each in enumerate(asked, 1):
        await _answer(each.answer, error, number)


async def _answer(future: asyncio.Future[Any], answer: Any, number: int) -> None:
    """Have a task go on; after some of them, let them, and what else the event loop has to do."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    if number % _WOKEN == 0:
        await asyncio.sleep(0)


@dataclass(slots=True)
class _Together:
    """Commits that are merged: what they write, by key, the keys and prefixes in their conditions, and their ops."""

    frees: bool
    written: dict[str, list[Op]] = field(default_factory=dict)
    needed: set[str] = field(default_factory=set)
    empty: set[str] = field(default_factory=set)
    ops: int = 0

    def take(self, commit: _Commit) -> bool:
        """Add a commit that depends on none of the others; return False if it does, or they would be too many."""
        if self.ops and (
            self.ops + len(commit.ops) > _OPS
            or commit.frees != self.frees
            or any(self.written.get(key, ops) != ops for key, ops in commit.written.items())
            or not (self.needed.isdisjoint(commit.written) and commit.needed.isdisjoint(self.written))
            or _begins_with(commit.written, self.empty)
            or _begins_with(self.written, commit.empty)
        ):
            return False
        self.written |= commit.written
        self.needed |= commit.needed
        self.empty |= commit.empty
        self.ops += len(commit.ops) + len(commit.conditions)
        return True


def _begins_with(keys: Mapping[str, object], prefixes: Set[str]) -> bool:
    """Return whether one of the keys begins with one of the prefixes."""
    sizes = {len(each) for each in prefixes}
    return any(key[:size] in prefixes for key in keys for size in sizes)


def _independent(commits: Sequence[_Commit]) -> tuple[list[_Commit], list[_Commit]]:
    """Return the first of the commits with others that do not depend on each other, and those that are left."""
    together, taken, left = _Together(commits[0].frees), list[_Commit](), list[_Commit]()
    for each in commits:
        (taken if together.take(each) else left).append(each)
    return taken, left
