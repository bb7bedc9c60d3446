"""Finds idle responses, and which of them belong together."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from ...concurrency.offloading import in_thread
from ...core.ids import tag_of
from ...core.statuses import UNFINISHED
from ...store.codec import UnreadableError
from ...store.decoder import Decoder
from ...store.history_nodes import parent_of
from ...store.layout import LISTS, Entry
from ...store.records import Record, Records, after_prefix, pages_of_keys
from .rows import RecordStub, held
from .units import Found

_LISTED: Final = 500
"""Rows of lists that are read at a time."""
_READ: Final = 100
"""Records that are read at a time."""
_READ_BYTES: Final = 4 * 2**20
_WINDOW: Final = 5_000
"""Responses of one user that are grouped into chains at a time."""
_TOGETHER: Final = 500
"""Most responses that are packed as one chain; of a longer one, the oldest are packed first."""


class Candidates:
    """Finds them.

    Args:
        records: the store; what is in pages is packed.
        decoder: decodes records.
    """

    def __init__(self, records: Records, decoder: Decoder) -> None:
        self._records, self._decoder = records, decoder

    async def before(self, oldest: str) -> AsyncIterator[Sequence[Found]]:
        """Yield responses that belong together, oldest first, whose positions in the lists are before `oldest`.

        Those that are running, and those that were brought back, are left out.
        """
        start, end = LISTS, after_prefix(LISTS)
        while first := await self._records.range(start, end, limit=1):
            of = f"{LISTS}{first[0][0].split('/')[1]}/"
            async for window in self._windows(of, f"{of}{oldest}"):
                for chain in await self._chains(window):
                    yield chain
            start = after_prefix(of)

    async def _windows(self, start: str, end: str) -> AsyncIterator[Sequence[Found]]:
        window = list[Found]()
        while rows := await self._records.range(start, end, limit=_LISTED):
            started = asyncio.get_running_loop().time()
            window += await self._idle([key.rpartition("/")[2] for key, _ in rows])
            if len(window) >= _WINDOW:
                yield window
                window = []
            start = rows[-1][0] + "\0"
            # Half of the time is that of responses.
            await asyncio.sleep(asyncio.get_running_loop().time() - started)
        if window:
            yield window

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
