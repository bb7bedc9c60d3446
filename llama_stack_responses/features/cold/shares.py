"""Which idle responses and conversations a server packs: those of its shares.

A share is a part of the users, and of the conversations, in one partition of the store. One living server has it: the
one whose name, hashed with the number of the share, is the greatest, as with the partitions of the queue
(`jobs/served_partitions.py`). While servers disagree for a moment about which of them live, two may pack the same
responses: the commits of one then fail.

    cp/next/<slice>    how far the server is that has this share; the row expires
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import groupby
from typing import Final, NamedTuple
from zlib import crc32

from ...concurrency.offloading import in_thread
from ...concurrency.tasks import answers_of
from ...core.errors import ApiError
from ...jobs.served_partitions import living_workers, workers_of
from ...store.layout import LISTS, with_tag
from ...store.records import Records, after_prefix, partitions_of
from .prefixes import OPEN

_SHARES: Final = 64
"""Shares of a store with fewer partitions."""
_DIGITS: Final = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
"""First characters of the names of users in keys, as the store orders them."""


CONVERSATIONS: Final = "c/"
_ID: Final = f"{CONVERSATIONS}conv_"
"""The beginning of the keys of conversations, which random hexadecimal digits follow, or a tag."""


class Share(NamedTuple):
    """A share: the number of its partition, and which part of the users and of the conversations there it has."""

    partition: int
    slice: int

    @property
    def cursor(self) -> str:
        """The key of the row that says how far its server is."""
        return with_tag(f"{OPEN}next/{self.slice:02x}", self.partition)


class Span(NamedTuple):
    """A range of the keys of lists, or of conversations, in one partition: those of adjacent shares.

    Attributes:
        start, end: the first key, and the first one behind it.
        cursor: the key of the row that has the start, if a server was there before it ended; else empty.
    """

    partition: int
    start: str
    end: str
    cursor: str = ""


class Shares:
    """The shares of one server.

    Args:
        records: the store.

    Attributes:
        worker: the name of the server among those that live; None if it is the only one.
    """

    def __init__(self, records: Records) -> None:
        self.worker: str | None = None
        self._records, self._living = records, frozenset[str]()
        self._partitions = partitions_of(records)
        slices = max(1, _SHARES // self._partitions)
        # The first slice begins with the first key, whatever that is.
        self._starts = [LISTS, *(f"{LISTS}{_DIGITS[len(_DIGITS) * each // slices]}" for each in range(1, slices))]
        self._conversations = [CONVERSATIONS, *(f"{_ID}{256 * each // slices:02x}" for each in range(1, slices))]
        self._all: Final = [Share(number, part) for number in range(self._partitions) for part in range(slices)]
        self._own: Sequence[Share] = []

    async def own(self) -> Sequence[Share]:
        """Return the shares of this server, given those that live now; none until its lease is in the store.

        While the store does not say who lives, they are what they were.

        Raises:
            ApiError: 503, the store does not answer, and never did.
        """
        if self.worker is None:
            return self._all
        try:
            living = frozenset(await living_workers(self._records))
        except ApiError:
            if not self._own:
                raise
            # Others may have some of them by now: then their commits fail, or these.
            return self._own
        if self.worker not in living:
            return []
        if living != self._living:
            self._own, self._living = await in_thread(self._of, self.worker, living), living
        return self._own

    def _of(self, worker: str, living: Set[str]) -> list[Share]:
        workers = workers_of(len(self._all), living)
        return [share for share, each in zip(self._all, workers, strict=True) if each == worker]

    def of_key(self, tag: int, key: str) -> Share:
        """Return the share that has a key of a list or of a conversation with this tag, or the beginning of one."""
        starts = self._starts if key.startswith(LISTS) else self._conversations
        return Share(tag % self._partitions, bisect_right(starts, key) - 1)

    def of_object(self, name: str) -> Share:
        """Return the share whose server deletes the object with this name once it has no chains, or rewrites it."""
        return self._all[crc32(name.encode()) % len(self._all)]

    def of_rest(self, name: str, partition: int) -> Share:
        """Return the share whose server deletes what the chains in this object have left in a partition."""
        return Share(partition, crc32(name.encode()) % len(self._starts))

    async def spans(self, own: Sequence[Share]) -> list[Span]:
        """Return the lists of shares, given in order, as few ranges. One begins where a server has ended in between.

        Where a partition does not answer, it begins with the first one.
        """
        try:
            ended = await self._records.get_many([share.cursor for share in own])
        except ApiError:
            of_parts = groupby(own, key=lambda share: share.partition)
            reads = (self._records.get_many([share.cursor for share in shares]) for _, shares in of_parts)
            answers = [each for each in await answers_of(reads) if not isinstance(each, ApiError)]
            ended = {key: record for found in answers for key, record in found.items()}
        return list(_joined(own, self._starts, {key: record.value.decode() for key, record in ended.items()}))

    def conversations(self, own: Sequence[Share]) -> list[Span]:
        """Return the conversations of shares, given in order, as few ranges."""
        return list(_joined(own, self._conversations, {}))


def _joined(own: Iterable[Share], starts: Sequence[str], ended: Mapping[str, str]) -> Iterator[Span]:
    """Yield the ranges of shares.

    Args:
        starts: the first key of each slice.
        ended: where servers have ended, by the keys of the rows that say so.
    """
    span: Span | None = None
    for share in own:
        behind = starts[share.slice + 1 :]
        start, end = starts[share.slice], behind[0] if behind else after_prefix(starts[0])
        if span and (span.partition, span.end) == (share.partition, start) and share.cursor not in ended:
            span = Span(span.partition, span.start, end, span.cursor)
            continue
        if span:
            yield span
        cursor = share.cursor if share.cursor in ended else ""
        span = Span(share.partition, ended.get(share.cursor, start), end, cursor)
    if span:
        yield span
