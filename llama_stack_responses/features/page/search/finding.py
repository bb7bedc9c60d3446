"""What a search finds: rows from the index, rows that are not indexed yet, and the parts of texts that are shown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from ....concurrency.offloading import in_thread
from ....core.types import Json
from ....store.read_allowance import PAGE_BYTES
from ....store.records import Record
from ....store.search_index import Progress, SearchIndex, Term, has_term, is_exact, words_of
from .demand import Demand
from .snippets import snippet
from .texts import Texts

_SHOWN_BYTES: Final = 2 * PAGE_BYTES
"""Bytes of responses that are read for the snippets of a page; further rows have none."""


@dataclass(frozen=True, slots=True)
class Search:
    """Searches in the index of a store.

    Attributes:
        index: the index.
        demand: is told of each search.
        texts: loads the texts of responses.
        catch_up: indexes the last responses, and returns how far the index has come.
    """

    index: SearchIndex
    demand: Demand
    texts: Texts
    catch_up: Callable[[], Awaitable[Progress]]

    async def begin(self, terms: Sequence[Term]) -> Finding:
        """Begin a search with words; the first one of all has the index made."""
        await self.demand.ask()
        return Finding(self, terms, await self.catch_up())


class Finding:
    """One page of one search.

    Args:
        search: the index, and the texts.
        terms: what is searched.
        progress: how far the index has come.

    Attributes:
        read: reads rows of a range that may match, as `Records.range` does; None if only first words can be searched.
        is_exact: whether what is found needs no text to be looked at.
    """

    def __init__(self, search: Search, terms: Sequence[Term], progress: Progress) -> None:
        self._search, self._terms, self._progress = search, terms, progress
        self._noted = set[str]()
        self._snippets = dict[str, list[Json]]()
        self.read = self._read if progress.complete else None
        self.is_exact = all(map(is_exact, terms))

    def needs_first_words(self, response_id: str) -> bool:
        """Return whether the first words of a row that was read have to match: it is not indexed yet."""
        return self.read is None or response_id in self._noted

    def is_candidate(self, response_id: str) -> bool:
        """Return whether a row that was read, and is indexed, has the terms in its text."""
        return self.is_exact or response_id in self._snippets

    @property
    def coverage(self) -> Json:
        """What is searched, and how many responses are indexed, and how many are not yet."""
        progress = self._progress
        covers = "everything" if progress.complete else "first_words"
        return {"covers": covers, "indexed": progress.indexed, "waiting": progress.waiting}

    async def snippets(self, ids: Sequence[str]) -> Mapping[str, list[Json]]:
        """Return the parts of the texts of these responses that have the terms, by their ids."""
        unread = [each for each in ids if each not in self._snippets]
        texts = await self._search.texts.of(unread, _SHOWN_BYTES)
        self._snippets |= await in_thread(lambda: {each: snippet(text, self._terms) for each, text in texts.items()})
        return self._snippets

    async def _read(self, start: str, end: str, *, limit: int, reverse: bool) -> list[tuple[str, Record]]:
        found, noted = await asyncio.gather(
            self._search.index.find(self._terms, start, end, limit=limit, reverse=reverse),
            self._search.index.noted(start, end, limit=limit, reverse=reverse),
        )
        indexed = dict(found)
        rows = dict(noted) | indexed
        self._noted.update(_ids(rows.keys() - indexed.keys()))
        read = sorted(rows.items(), key=itemgetter(0), reverse=reverse)[:limit]
        if not self.is_exact:
            await self._look_at_texts(_ids(key for key, _ in read if key in indexed))
        return read

    async def _look_at_texts(self, ids: Iterable[str]) -> None:
        texts = await self._search.texts.of(list(ids))
        self._snippets |= await in_thread(
            lambda: {each: snippet(text, self._terms) for each, text in texts.items() if self._says(text)}
        )

    def _says(self, text: str) -> bool:
        words = words_of(text)
        return all(has_term(words, term) for term in self._terms)


def _ids(keys: Iterable[str]) -> list[str]:
    return [key.rpartition("/")[2] for key in keys]
