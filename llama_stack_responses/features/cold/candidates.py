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
from ...store.codec import UnreadableError
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
"""How many times as long as reading it took, and how long at most, the server waits after a part without candidates."""
_READ: Final = 100
"""Records that are read at a time."""
_READ_BYTES: Final = 4 * 2**20
_WINDOW: Final = 5_000
"""Responses of one user that are grouped into chains at a time."""
_TOGETHER: Final = 500
"""Most responses that are packed as one chain; of a longer one, the oldest are packed first."""


class Window(NamedTuple):
    """Idle responses of some users.

    Attributes:
        start: the key from which to go on if the server ends before they are packed.
        chains: those that belong together, oldest first.
    """

    start: str
    chains: Sequence[Sequence[Found]]


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
            began = asyncio.get_running_loop().time()
            found = await self._idle([key.rpartition("/")[2] for key, _ in rows if key.split("/")[2] < oldest])
            window += found
            start = _behind(rows[-1][0], oldest)
            taken = asyncio.get_running_loop().time() - began
            if len(window) >= _LISTED and (whole := _in_whole_lists(window, of := _list_of(rows[-1][0]))):
                yield Window(position, await self._chains(window[:whole]))
                window = window[whole:]
                position = of if window else start
            await asyncio.sleep(taken if found else min(_IDLE * taken, _MOST_SECONDS))
        if window:
            yield Window(position, await self._chains(window))

    async def _idle(self, ids: Sequence[str]) -> list[Found]:
        """Return those of the responses that are idle and in the store."""
        found = list[Found]()
        async for records in self._read([f"r/{each}" for each in ids]):
            whole = [record for record in records.values() if RecordStub.read(record) is None]
            found += await self._decoded(whole)
        finished = [each for each in found if each.entry.response["status"] not in UNFINISHED]
        holds = await self._records.get_many([held(each.entry.id) for each in finished]) if finished else {}
        return [each for each in finished if held(each.entry.id) not in holds]

    async def _decoded(self, records: Sequence[Record]) -> list[Found]:
        """Return the entries of records; damaged ones stay where they are."""
        found = list[Found]()
        for record in records:
            try:
                [stored] = await self._decoder.decode([record.value])
            except UnreadableError:
                continue
            found.append(Found(Entry.from_stored(stored), record.version))
        return found

    async def _chains(self, window: Sequence[Found]) -> list[Sequence[Found]]:
        """Return the responses that belong together: one continues the other, or their histories do.

        They have one owner, with the same groups and key, whom the row of the chain names, and one tag.
        """
        ends = {each.entry.history: number for number, each in enumerate(window) if each.entry.history}
        return await in_thread(_grouped, window, ends, await self._by_history(ends))

    async def _by_history(self, ends: Mapping[str, int]) -> list[tuple[int, int]]:
        """Return the pairs of responses of which one continues the other's history, or both continue the same input."""
        names = {f"n/{name}": number for name, number in ends.items()}
        pairs = list[tuple[int, int]]()
        # The node of a turn's output continues that of its input, if they are two.
        for _ in range(2):
            parents = dict[str, int]()
            async for records in self._read(list(names)):
                for key, record in records.items():
                    parent = parent_of(record.value)
                    if parent and parent in ends:
                        pairs.append((names[key], ends[parent]))
                    elif parent:
                        pairs.append((names[key], parents.setdefault(f"n/{parent}", names[key])))
            names = parents
        return pairs

    def _read(self, keys: Sequence[str]) -> AsyncIterator[dict[str, Record]]:
        return pages_of_keys(self._records, keys, _READ, _READ_BYTES)


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


def _grouped(
    window: Sequence[Found], ends: Mapping[str, int], pairs: Sequence[tuple[int, int]]
) -> list[Sequence[Found]]:
    """Return the responses that belong together.

    Args:
        ends: one of the responses with each history, by its name.
        pairs: responses of which one continues the other's history.
    """
    numbers = {each.entry.id: number for number, each in enumerate(window)}
    joins = list(pairs)
    for number, each in enumerate(window):
        previous = numbers.get(each.entry.response.get("previous_response_id") or "")
        if previous is not None:
            joins.append((number, previous))
        if each.entry.history:
            joins.append((number, ends[each.entry.history]))
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
