"""Indexes the responses that the store has noted, outside of requests, once somebody has searched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from ....concurrency.offloading import in_thread
from ....core.json_values import is_large
from ....lifecycle.periodic import Periodic
from ....logs import get_logger
from ....store.ends import Ended
from ....store.search_index import Document, Noted, Progress, SearchIndex, indexed_words
from ....store.shared_content import given_items
from .demand import Demand
from .texts import Texts, safe_text_of

logger = get_logger(__name__)

_SECONDS: Final = 1.0
"""Seconds between two looks at what is noted."""
_REMOVER_SECONDS: Final = 3600.0
_ROUNDS_PER_LOOK: Final = 60
"""Looks at what is noted between two looks at whether the index is wanted, and at what is to be purged."""
_QUIET_SECONDS: Final = 30.0
"""Seconds without a response after which the server is idle: many that are indexed together take less room."""
_BUSY_ROUNDS: Final = 300
"""Looks after which a server that is never idle indexes nevertheless."""
_TOGETHER: Final = 128
"""Responses that are indexed in one commit."""
_CAUGHT_UP: Final = 2 * _TOGETHER
"""Responses that are indexed before a search is answered, if no more are waiting."""
_HELD: Final = 1024
"""Texts that are held until they are indexed; those of further responses are loaded."""
_HELD_BYTES: Final = 16 * 1024
"""Bytes of a response and of its input up to which its text is held."""
_PURGE_SECONDS: Final = 3600.0
"""Seconds after which the words of deleted responses leave the files of the store."""


class Indexer(Periodic):
    """Keeps the index of a store up to date, with at most half of the time of the event loop's thread.

    It makes the index once somebody has searched, and drops it when nobody has for a long time. It works when no
    response has run for half a minute; if that is not so for five minutes, or too many texts wait, it works
    nevertheless. A search has the last responses indexed at once.

    Args:
        index: the index of the store.
        demand: says whether it is wanted.
        texts: loads the texts of responses.
        is_busy: returns whether the server generates a response.
        clock: returns seconds.
    """

    def __init__(
        self,
        index: SearchIndex,
        demand: Demand,
        texts: Texts,
        is_busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(self.work, "could not index responses for the search", logger, _SECONDS)
        self._index, self._demand, self._texts, self._is_busy, self._clock = index, demand, texts, is_busy, clock
        self._held = dict[str, str]()
        self._ended = -_QUIET_SECONDS
        self._prepared = False
        self._may_exist = True
        self._rounds = 0
        self._postponed = 0

    def ended(self, ended: Ended) -> None:
        """Hold the text of a response that was stored here, so that it need not be loaded."""
        if not self._demand.wanted:
            return
        self._ended = self._clock()
        if ended.inputs is None or len(self._held) >= _HELD:
            return
        if not is_large([ended.response, ended.inputs], _HELD_BYTES):
            self._held[ended.response["id"]] = safe_text_of(ended.response, given_items(ended.inputs))

    async def work(self) -> None:
        """Index what is noted, if this is the time.

        Raises:
            ApiError: 503, the store does not answer.
        """
        looks = self._rounds % _ROUNDS_PER_LOOK == 0
        self._rounds += 1
        if looks:
            await self._look()
        if not self._demand.wanted:
            return
        while not self._prepared:
            self._prepared = await self._index.prepare()
        if self._is_time():
            await self._index_noted()
            self._postponed = 0
        if looks:
            await self._index.purge(_PURGE_SECONDS)

    async def catch_up(self) -> Progress:
        """Index what is noted, unless it is much; return how far the index has come.

        Raises:
            ApiError: 503, the store does not answer.
        """
        progress = await self._index.progress()
        if progress.complete and 0 < progress.waiting <= _CAUGHT_UP:
            await self._index_noted()
            progress = await self._index.progress()
        return progress

    async def _look(self) -> None:
        """Find out whether the index is wanted, and drop one that is not."""
        await self._demand.look()
        if not self._demand.wanted and self._may_exist and await self._index.is_of_earlier_version():
            await self._demand.ask()  # That version made it without a search: some may search in it.
        if not self._demand.wanted and self._may_exist:
            self._prepared = False
            self._held.clear()
            await self._index.drop()
        self._may_exist = self._demand.wanted

    def _is_time(self) -> bool:
        self._postponed += 1
        is_new, self._demand.is_new = self._demand.is_new, False
        is_quiet = not self._is_busy() and self._clock() - self._ended >= _QUIET_SECONDS
        return is_new or is_quiet or self._postponed >= _BUSY_ROUNDS or len(self._held) >= _HELD // 2

    async def _index_noted(self) -> None:
        held = list(self._held)
        while noted := await self._index.claim(_TOGETHER):
            began = self._clock()
            await self._index.put(await self._documents(noted))
            await asyncio.sleep(self._clock() - began)
            if len(noted) < _TOGETHER:
                break  # What is noted meanwhile is found at the next look.
        for each in held:
            self._held.pop(each, None)  # Its response was deleted, or another server has indexed it.

    async def _documents(self, noted: Sequence[Noted]) -> list[Document]:
        """Return the words of rows; a response that is gone has none."""
        ids = [each.key.rpartition("/")[2] for each in noted]
        texts = {each: text for each in ids if (text := self._held.pop(each, None)) is not None}
        texts |= await self._texts.of([each for each in ids if each not in texts])
        words = await in_thread(lambda: [indexed_words(texts.get(each, "")) for each in ids])
        return [Document(*each) for each in zip(noted, words, strict=True)]


class Remover(Periodic):
    """Removes the index of a store that is not to have one.

    Args:
        index: the index.
    """

    def __init__(self, index: SearchIndex) -> None:
        super().__init__(index.drop, "could not remove the index of the search", logger, _REMOVER_SECONDS)
