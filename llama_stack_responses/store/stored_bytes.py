"""Counts the bytes that the responses and conversations of each user take, by reading all of them, and large objects.

Counted are the keys and values of responses and of their rows in lists, of the content that they refer to, of recorded
chat requests, and of conversations and their items, and what features say of objects that may be large, such as skills.
References and pointers, which are small, are not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Final

from ..core.owner import Owner
from ..core.types import Json
from .codec import UnreadableError
from .decoder import Decoder
from .feature_store import Sized, open_feature_stores
from .history_nodes import parent_of
from .layout import Entry, chat_request
from .records import Record, Records, bytes_of, pages_of, pages_of_keys

_ROWS: Final = 100
"""Rows that are read at a time."""
_BYTES: Final = 2**20
"""Bytes with which a read ends."""
_REMEMBERED: Final = 1_000_000
"""Pieces of content of one user of which it is known that they were counted."""


class StoredBytes:
    """Counts what is stored.

    Args:
        records: the store.
        decoder: decodes responses.
        pause: is awaited after each read, with the bytes that were read.
    """

    def __init__(self, records: Records, decoder: Decoder, pause: Callable[[int], Awaitable[object]]) -> None:
        self._records, self._decoder, self._pause = records, decoder, pause

    async def count(self) -> AsyncIterator[tuple[Owner, int]]:
        """Yield the owner of each response, conversation and large object of a feature, and bytes that it takes.

        Content that responses of a user share counts for one of them. Of a user with more than a million pieces of
        content, a piece that many responses share may count several times.

        Raises:
            ApiError: 503, the store does not answer.
        """
        of, counted = "", set[int]()
        async for rows in self._pages("l/"):
            for name, own in groupby(rows, key=lambda row: row[0].split("/")[1]):
                if name != of:
                    of, counted = name, set()
                async for each in self._responses(dict(own), counted):
                    yield each
        async for each in self._conversations():
            yield each
        async for each in self._of_features():
            yield each

    async def _of_features(self) -> AsyncIterator[tuple[Owner, int]]:
        for store in open_feature_stores(self._records, self._decoder):
            if isinstance(store, Sized):
                async for each in store.sizes():
                    yield each
                    await self._pause(0)

    async def _conversations(self) -> AsyncIterator[tuple[Owner, int]]:
        async for rows in self._pages("c/"):
            for (key, record), stored in zip(rows, await self._decoded([each for _, each in rows]), strict=True):
                if stored is None:
                    continue
                size = _size(key, record)
                async for items in self._pages(f"m/{key.removeprefix('c/')}/"):
                    size += sum(_size(*each) for each in items)
                yield Owner(*stored["owner"]), size

    async def _responses(self, rows: Mapping[str, Record], counted: set[int]) -> AsyncIterator[tuple[Owner, int]]:
        """Yield what responses of one user take, given their rows in the list."""
        listed = {f"r/{key.rpartition('/')[2]}": _size(key, record) for key, record in rows.items()}
        content: dict[str, Owner] = {}
        async for found in self._read(list(listed)):
            for key, stored in zip(found, await self._decoded(list(found.values())), strict=True):
                if stored is None:
                    continue
                entry = Entry.from_stored(stored)
                yield entry.owner, listed[key] + _size(key, found[key])
                requests = [chat_request(entry.id, number) for number in range(entry.recorded)]
                content |= dict.fromkeys(_new([*entry.references().values(), *requests], counted), entry.owner)
        while content:
            parents: dict[str, Owner] = {}
            async for found in self._read(list(content)):
                for key, record in found.items():
                    yield content[key], _size(key, record)
                    parent = _parent(key, record)
                    # Beyond what is remembered, each response counts its own part of a history.
                    if parent and len(counted) < _REMEMBERED:
                        parents |= dict.fromkeys(_new([f"n/{parent}"], counted), content[key])
            content = parents

    async def _decoded(self, records: Sequence[Record]) -> Sequence[Json | None]:
        """Decode values; None for a damaged one, whose owner is unknown."""
        try:
            return await self._decoder.decode([record.value for record in records])
        except UnreadableError:
            if len(records) == 1:
                return [None]
            return [stored for record in records for stored in await self._decoded([record])]

    async def _pages(self, prefix: str) -> AsyncIterator[list[tuple[str, Record]]]:
        async for rows in pages_of(self._records, prefix, _ROWS, _BYTES):
            yield rows
            await self._pause(bytes_of(record for _, record in rows))

    async def _read(self, keys: Sequence[str]) -> AsyncIterator[dict[str, Record]]:
        """Yield the records of those keys that exist, some at a time."""
        async for found in pages_of_keys(self._records, keys, _ROWS, _BYTES):
            if found:
                yield found
            await self._pause(bytes_of(found.values()))


def _new(keys: Sequence[str], counted: set[int]) -> list[str]:
    """Return the keys that were not counted, and remember them."""
    new = [key for key in dict.fromkeys(keys) if hash(key) not in counted]
    if len(counted) < _REMEMBERED:
        counted.update(map(hash, new))
    return new


def _parent(key: str, record: Record) -> str | None:
    try:
        return parent_of(record.value) if key.startswith("n/") else None
    except UnreadableError:
        return None


def _size(key: str, record: Record) -> int:
    return len(key) + len(record.value)
