"""Indexes the responses that the store has noted, outside of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import batched
from typing import Final

from ....concurrency.offloading import in_thread_if_large
from ....core.types import Json
from ....lifecycle.periodic import Periodic
from ....logs import get_logger
from ....store.decoder import Decoder
from ....store.read_allowance import PAGE_BYTES
from ....store.records import Records
from ....store.response_loader import ResponseLoader
from ....store.retention import Retention
from ....store.search_index import Document, Noted, SearchIndex
from .document_text import text_of

logger = get_logger(__name__)

_SECONDS: Final = 1.0
"""Seconds between two looks at what is noted."""
_REMOVER_SECONDS: Final = 3600.0
_TOGETHER: Final = 64
"""Responses that are indexed in one commit."""
_LOADED: Final = 8
"""Responses that are loaded together."""
_PURGE_SECONDS: Final = 3600.0
"""Seconds after which the words of deleted responses leave the files of the store."""
_ROUNDS_PER_PURGE: Final = 60


class Indexer(Periodic):
    """Keeps the index of a store up to date, with at most half of the time of the event loop's thread.

    Args:
        records: the store.
        index: its index.
        clock: returns seconds.
    """

    def __init__(self, records: Records, index: SearchIndex, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(self.work, "could not index responses for the search", logger, _SECONDS)
        self._index, self._clock = index, clock
        self._loader = ResponseLoader(records, Decoder(), Retention(None, time.time), PAGE_BYTES)
        self._prepared = False
        self._rounds = 0

    async def work(self) -> None:
        """Index all that is noted.

        Raises:
            ApiError: 503, the store does not answer.
        """
        while not self._prepared:
            self._prepared = await self._index.prepare()
            await self._index_noted()
        await self._index_noted()
        self._rounds += 1
        if self._rounds % _ROUNDS_PER_PURGE == 1:
            await self._index.purge(_PURGE_SECONDS)

    async def _index_noted(self) -> None:
        while noted := await self._index.claim(_TOGETHER):
            began = self._clock()
            await self._index.put(await self._documents(noted))
            await asyncio.sleep(self._clock() - began)
            if len(noted) < _TOGETHER:
                return  # What is noted meanwhile is found at the next look.

    async def _documents(self, noted: Sequence[Noted]) -> list[Document]:
        """Return the texts of rows; that of a response that is gone is empty."""
        ids = [each.key.rpartition("/")[2] for each in noted]
        texts = dict[str, str]()
        for some in batched(ids, _LOADED):
            texts |= await self._texts(some)
        return [Document(each, texts.get(response_id, "")) for each, response_id in zip(noted, ids, strict=True)]

    async def _texts(self, ids: Sequence[str]) -> dict[str, str]:
        texts = dict[str, str]()
        async for stored, own in self._loader.with_inputs(ids):
            read = partial(_text_of, stored.response, own)
            texts[stored.response["id"]] = await in_thread_if_large(read, stored.response, own)
        return texts


class Remover(Periodic):
    """Removes the index of a store that is not to have one.

    Args:
        index: the index.
    """

    def __init__(self, index: SearchIndex) -> None:
        super().__init__(index.drop, "could not remove the index of the search", logger, _REMOVER_SECONDS)


def _text_of(response: Json, inputs: Sequence[Json]) -> str:
    try:
        return text_of(response, inputs)
    except Exception:
        # The next ones are indexed nevertheless.
        logger.exception("could not read the text of a response for the search: %s", response["id"])
        return ""
