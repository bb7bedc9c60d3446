"""Finds idle responses, and which of them belong together."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from ...concurrency.offloading import in_thread
from ...core.ids import tag_of
from ...core.statuses import UNFINISHED
from ...store.decoder import Decoder
from ...store.history_nodes import parent_of
from ...store.layout import LISTS, Entry
from ...store.records import Record, Records, after_prefix, pages_of_keys, range_in
from .rows import RecordStub, held
from .shares import Span
from .units import Found

_LISTED: Final = 500
"""Rows of lists that are read at a time, and responses with which a window ends, unless it is within a list."""
_IDLE: Final = 9
_MOST_SECONDS: Final = 5.0
"""How many times as long as looking took, and how long at most, the server waits if there was nothing to pack."""
_READ: Final = 64
"""Keys that are read at a time."""
_READ_BYTES: Final = 4 * 2**20
_WINDOW: Final = 5_000
"""Responses of one user that are grouped into chains at a time."""
_TOGETHER: Final = 500
"""Most responses that are packed as one chain; of a longer one, the oldest are packed first."""


class Window(NamedTuple):
    """Idle responses of some users.

    Attributes:
        start: the key from which to go on if the server ends before they are packed.
        chains: those that belong together, oldest first. Packing removes them from the list.
    """

    start: str
    chains: list[Sequence[Found]]


class Candidates:
    """Finds them.

    Args:
        records: the store; what is in pages is packed.
        decoder: decodes records.
    """

    def __init__(self, records: Records, decoder: Decoder) -> None:
        self._records, self._decoder = records, decoder

    async def within(self, span: Span, oldest: str) -> AsyncIterator[Window]:
        """Yield the responses of lists whose positions there are before `oldest`, in the order of the keys.

        Those that are running, and those that were brought back, are left out. A tenth of the time goes to parts of
        lists that have nothing to pack.
        """
        start = position = span.start
        window = list[Found]()
        while rows := await range_in(self._records, span.partition, start, span.end, limit=_LISTED):
            began, before = asyncio.get_running_loop().time(), len(window)
            window += await self._idle([key.rpartition("/")[2] for key, _ in rows if key.split("/")[2] < oldest])
            found = len(window) > before
            start = _behind(rows[-1][0], oldest)
            taken = asyncio.get_running_loop().time() - began
            of = _list_of(rows[-1][0])
            if len(window) >= _LISTED and (whole := await in_thread(_in_whole_lists, window, of)):
                yield Window(position, await self._chains(_cut(window, whole)))
                position = of if window else start
            await pause_after(taken, found=found)
        if window:
            yield Window(position, await self._chains(_cut(window, len(window))))

    async def _idle(self, ids: Sequence[str]) -> list[Found]:
        """Return those of the responses that are idle and in the store."""
        found, holds = list[Found](), set[str]()
        # The row that says that a response was brought back comes before its record.
        async for rows in self._read([key for each in ids for key in (held(each), f"r/{each}")]):
            records = {key.removeprefix("r/"): record for key, record in rows.items() if key.startswith("r/")}
            holds |= rows.keys()
            whole = [row for each, row in records.items() if held(each) not in holds and RecordStub.read(row) is None]
            found += [each for each in await self._decoded(whole) if each.entry.response["status"] not in UNFINISHED]
        return found

    async def _decoded(self, records: Sequence[Record]) -> list[Found]:
        """Return the entries of records; damaged ones stay where they are."""
        decoded = await self._decoder.decode_readable([record.value for record in records])
        return [
            Found(Entry.from_stored(stored), record.version)
            for record, stored in zip(records, decoded, strict=True)
            if stored is not None
        ]

    async def _chains(self, window: Sequence[Found]) -> list[Sequence[Found]]:
        """Return the responses that belong together: one continues the other, or their histories do.

        They have one owner, with the same groups and key, whom the row of the chain names, and one tag.
        """
        ends = await in_thread(_ends_of, window)
        return await in_thread(_grouped, window, ends, await self._by_history(ends))

    async def _by_history(self, ends: Mapping[str, int]) -> list[tuple[int, int]]:
        """Return the pairs of responses of which one continues the other's history, or both continue the same input.

        Args:
            ends: one of the responses with each history, by its key.
        """
        names, pairs = ends, list[tuple[int, int]]()
        # The node of a turn's output continues that of its input, if they are two.
        for _ in range(2):
            parents = dict[str, int]()
            async for records in self._read(list(names)):
                for key, record in records.items():
                    parent = f"n/{name}" if (name := parent_of(record.value)) else ""
                    if parent in ends:
                        pairs.append((names[key], ends[parent]))
                    elif parent:
                        pairs.append((names[key], parents.setdefault(parent, names[key])))
            names = parents
        return pairs

    def _read(self, keys: Sequence[str]) -> AsyncIterator[dict[str, Record]]:
        return pages_of_keys(self._records, keys, _READ, _READ_BYTES)


async def pause_after(taken: float, *, found: bool) -> None:
    """Leave the time to other work: as many seconds as looking took, and more if there was nothing to pack."""
    await asyncio.sleep(taken if found else min(_IDLE * taken, _MOST_SECONDS))


def _list_of(key: str) -> str:
    """Return the prefix of the list in which a row is."""
    return f"{LISTS}{key.split('/')[1]}/"


def _behind(key: str, oldest: str) -> str:
    """Return the key behind a row of a list, or behind the whole list if all that follows there is too young."""
    return f"{key}\0" if key.split("/")[2] < oldest else after_prefix(_list_of(key))


def _in_whole_lists(window: Sequence[Found], of: str) -> int:
    """Return how many responses of a window are before those of this list, which goes on; all if these are many."""
    last = window[-1].entry
    if not last.listed.startswith(of):
        return len(window)
    tail = sum(1 for _ in takewhile(lambda each: each.entry.owner.identity == last.owner.identity, reversed(window)))
    return len(window) - tail if tail < _WINDOW else len(window)


def _ends_of(window: Sequence[Found]) -> dict[str, int]:
    """Return one of the responses with each history, by its key."""
    return {f"n/{each.entry.history}": number for number, each in enumerate(window) if each.entry.history}


def _cut(window: list[Found], count: int) -> list[Found]:
    """Take the first responses out of a window, and return them."""
    first = window[:count]
    del window[:count]
    return first


def _grouped(
    window: Sequence[Found], ends: Mapping[str, int], pairs: Sequence[tuple[int, int]]
) -> list[Sequence[Found]]:
    """Return the responses that belong together.

    Args:
        ends: one of the responses with each history, by its key.
        pairs: responses of which one continues the other's history.
    """
    numbers = {each.entry.id: number for number, each in enumerate(window)}
    joins = list(pairs)
    for number, each in enumerate(window):
        previous = numbers.get(each.entry.response.get("previous_response_id") or "")
        if previous is not None:
            joins.append((number, previous))
        if each.entry.history:
            joins.append((number, ends[f"n/{each.entry.history}"]))
    groups = defaultdict[tuple[int, str, int], list[Found]](list)
    roots = _roots(len(window), joins)
    for number, each in enumerate(window):
        groups[roots[number], repr(each.entry.owner.encode()), tag_of(each.entry.id)].append(each)
    return [group[at : at + _TOGETHER] for group in groups.values() for at in range(0, len(group), _TOGETHER)]


def _roots(count: int, joins: Sequence[tuple[int, int]]) -> Sequence[int]:
    """Return, for each number below `count`, one of those that it is joined with, the same for all of them."""
    roots = list(range(count))

    def root(number: int) -> int:
        while roots[number] != number:
            roots[number] = roots[roots[number]]
            number = roots[number]
        return number

    for one, other in joins:
        roots[root(one)] = root(other)
    return [root(number) for number in range(count)]
