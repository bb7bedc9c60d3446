"""File search: the model searches the stack's vector stores for passages and cites their files."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice
from typing import Final

from ...concurrency.offloading import list_in_thread_if_large
from ...core.types import Json
from ...requests.request import CreateRequest
from ...stream.call_kinds import CallKind, no_fields
from ...stream.citations import CLOSES, OPENS, Citation
from ...tools.hosted.lenient_arguments import MAX_QUERIES, search_queries
from ...tools.hosted.sources import Sources, sanitized_lines
from ...tools.hosted.vector_stores import Passage, VectorStores
from ...tools.tool import Cites, NeedsPreparation
from ...tools.tool_function import Function, Invocation, ItemReporter, Outcome, chat_function
from ...tools.tool_history import ToolHistory
from .kinds import FORM

_NAME: Final = "file_search"
_DEFAULT_RESULTS: Final = 10
_DEFAULT_THRESHOLD: Final = 0.0
_MAX_CONCURRENT_SEARCHES: Final = 8
"""Default number of results, and maximum number of concurrent searches."""
_PASSAGE_CHARACTERS: Final = 65_536
_PASSAGES_CHARACTERS: Final = 2**20
"""Maximum characters of the text of one passage, and of all passages of one call."""
_WORD_CHARACTERS: Final = 512
_MAX_ATTRIBUTES: Final = 16
"""Maximum characters of a name and of an attribute's value, and number of attributes, as OpenAI allows."""
_PREFIX: Final = "F"
_CITE: Final = (
    f"Passages of files, the best first. Cite a file by its number right behind what it supports, as in: "
    f"Otters hold hands{OPENS}{_PREFIX}1{CLOSES}."
)
_FUNCTION: Final = chat_function(
    _NAME,
    "Searches the user's files by meaning and shows the passages that fit best.",
    {
        "type": "object",
        "properties": {
            "queries": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": MAX_QUERIES,
                "description": "What to search for, in whole phrases; several queries look at several sides at once.",
            }
        },
        "required": ["queries"],
    },
)


class FileSearch(NeedsPreparation, Cites):
    """The file search tool, with a single function."""

    def __init__(self, declared: Json, request: CreateRequest, stores: VectorStores) -> None:
        self._declared = declared
        self._store_ids = list(dict.fromkeys(declared["vector_store_ids"]))
        self._shows_results = "file_search_call.results" in request.include
        self._stores = stores
        self._sources = Sources(_PREFIX)
        kind = CallKind(FORM, no_fields, whole=_queries, unread={"queries": []}, hosted=True)
        self._functions = (Function(_FUNCTION, kind, self._run, repeatable=True),)

    def functions(self) -> Sequence[Function]:
        """Return the single function."""
        return self._functions

    def handles(self) -> Collection[str]:
        """Return the handle of its type."""
        return ("file_search",)

    def chosen(self, choice: Json) -> Collection[str]:
        """Return the function if the choice names the tool's type."""
        return [_NAME] if choice["type"] == "file_search" else []

    async def prepare(self, history: ToolHistory, _: ItemReporter) -> None:
        """Check that the stores exist, and restore the files that the model knows from its conversation."""
        for store_id in self._store_ids:
            await self._stores.check(store_id)
        await history.learn([_NAME], self._sources.learn)

    def cite(self, key: str, _: str) -> Citation | None:
        """Return the citation of a file by its number; the marker is removed from the text."""
        source = self._sources.get(key)
        if source is None:
            return None
        return Citation("", {"type": "file_citation", "file_id": source.url, "filename": source.title})

    async def _run(self, invocation: Invocation) -> Outcome:
        invocation.advance("searching")
        passages = await self._search(invocation.item["queries"])
        results = [
            {
                "attributes": dict(each.attributes),
                "file_id": each.file_id,
                "filename": each.filename,
                # OpenAI's scores are within these bounds; some stores return infinity for a distance of 0.
                "score": min(max(each.score, 0.0), 1.0),
                "text": each.text,
            }
            for each in passages
        ]
        return Outcome(await self._listed(passages), {"results": results} if self._shows_results else {})

    async def _search(self, queries: Sequence[str]) -> list[Passage]:
        """Return the best passages of all stores for all queries, without duplicates."""
        count = self._declared.get("max_num_results") or _DEFAULT_RESULTS
        ranking: Json = self._declared.get("ranking_options") or {}
        threshold = ranking.get("score_threshold") or _DEFAULT_THRESHOLD
        options: Json = {
            "filters": self._declared.get("filters"),
            "ranking_options": {**ranking, "score_threshold": threshold},
            "max_num_results": count,
        }
        slots = asyncio.Semaphore(_MAX_CONCURRENT_SEARCHES)

        async def search(store_id: str, query: str) -> Sequence[Passage]:
            async with slots:
                passages = await self._stores.search(store_id, query, options)
            return [_bounded(each) for each in passages[:count]]

        searches = (search(store_id, query) for store_id in self._store_ids for query in queries)
        passages = chain.from_iterable(await asyncio.gather(*searches))
        best = sorted(passages, key=lambda each: each.score, reverse=True)
        several = list({(each.file_id, each.text): each for each in reversed(best)}.values())[::-1][:count]
        sizes = accumulate(len(each.text) for each in several)
        return [each for each, size in zip(several, sizes, strict=True) if size <= _PASSAGES_CHARACTERS]

    async def _listed(self, passages: Sequence[Passage]) -> str:
        if not passages:
            return "Nothing was found. Try other words."
        texts = [each.text for each in passages]
        lines = await list_in_thread_if_large(map(sanitized_lines, texts), texts)
        output = [_CITE]
        for each, of_it in zip(passages, lines, strict=True):
            heading = self._sources.heading(self._sources.number(each.file_id, each.filename or each.file_id))
            output.append("\n".join([heading, *of_it]))
        return "\n\n".join(output)


def _bounded(passage: Passage) -> Passage:
    """Return the passage within the bounds. The store decides on its size."""
    attributes = islice(passage.attributes.items(), _MAX_ATTRIBUTES)
    return replace(
        passage,
        filename=(passage.filename or "")[:_WORD_CHARACTERS],
        attributes={
            name[:_WORD_CHARACTERS]: each[:_WORD_CHARACTERS] if isinstance(each, str) else each
            for name, each in attributes
        },
        text=passage.text[:_PASSAGE_CHARACTERS],
    )


def _queries(arguments: str) -> Json | None:
    """Return the queries of a call, as fields of its item."""
    queries = search_queries(arguments)
    return {"queries": queries} if queries else None
