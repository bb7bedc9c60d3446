"""A store whose idle responses are packed into a folder, or into a bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from llama_stack_responses.features.cold.bringing import Bringing
from llama_stack_responses.features.cold.objects import Objects, Stored
from llama_stack_responses.features.cold.packing import Packing
from llama_stack_responses.features.cold.pages import PagedRecords
from llama_stack_responses.features.cold.rows import RecordStub
from llama_stack_responses.features.cold.settings import ColdTier
from llama_stack_responses.features.cold.unpacking_records import UnpackingRecords
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import Put, Records, after_prefix
from tests.support.records import WatchedRecords

OBJECTS: Final = "test-object/"
"""The prefix of objects that are kept in rows."""

AFTER: Final = 48 * 3600.0
"""Seconds after which a response is packed."""


class ColdStore:
    """A server of such a store.

    Args:
        hot: the store.
        settings: where the objects are.
        clock: returns the time.
        meddle: wraps the store where objects are packed and brought back.

    Attributes:
        hot: the store.
        paged: the store, with the rows that are in pages.
        records: what the server uses.
        archive: its responses.
        objects, packing: as their classes say.
    """

    def __init__(
        self,
        hot: Records,
        settings: ColdTier,
        clock: Callable[[], float],
        meddle: Callable[[Records], Records] = lambda records: records,
    ) -> None:
        self.hot = hot
        self.paged = PagedRecords(hot)
        self.objects = Objects(settings, hot)
        self.records = UnpackingRecords(hot, Bringing(meddle(hot), self.objects, AFTER, None))
        self.archive = Archive(self.records, clock=clock)
        self.packing = Packing(meddle(hot), self.objects, AFTER, least_bytes=1)

    async def packed(self) -> set[str]:
        """Return the ids of the responses that are packed."""
        rows = await self.paged.range("r/", "r0", limit=10_000)
        return {key.removeprefix("r/") for key, record in rows if RecordStub.read(record)}

    async def stored(self) -> dict[str, int]:
        """Return the sizes of all objects."""
        return {each.name: each.size async for each in self.objects.all()}


async def pack_with(here: ColdStore, meddle: Callable[[], Awaitable[object]]) -> None:
    """Pack, and do something right before the commit that takes out of the store what is in the object."""
    begun = False

    async def before(name: str) -> None:
        nonlocal begun
        if name == "commit" and not begun and await here.stored():
            begun = True
            await meddle()

    await Packing(WatchedRecords(here.hot, before=before), here.objects, AFTER, least_bytes=1).work()
    assert begun


async def sent(*data: bytes) -> AsyncIterator[bytes]:
    """Yield what is written."""
    for each in data:
        yield each


class ObjectsInRows:
    """Keeps the objects of a store in rows of that store, so that a file of its rows has all."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def put(self, name: str, data: AsyncIterator[bytes]) -> None:
        await self._records.commit([Put(f"{OBJECTS}{name}", b"".join([each async for each in data]))])

    async def read(self, name: str, at: int, size: int) -> bytes:
        key = f"{OBJECTS}{name}"
        return (await self._records.get_many([key]))[key].value[at : at + size]

    async def all(self) -> AsyncIterator[Stored]:
        for key, record in await self._records.range(OBJECTS, after_prefix(OBJECTS), limit=100):
            yield Stored(key.removeprefix(OBJECTS), len(record.value))


def in_folder(folder: Path) -> ColdTier:
    """Return settings for a folder."""
    return ColdTier(url=f"file://{folder}/cold")
