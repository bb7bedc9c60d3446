"""The host's vector stores."""

from __future__ import annotations

from typing import Any, Final

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.logs import get_logger
from llama_stack_responses.tools.hosted.vector_stores import Passage
from llama_stack_responses.tools.tool import ToolError

from .failures import failed, is_missing
from .platform import OpenAISearchVectorStoreRequest, SearchRankingOptions

Json = dict[str, Any]

logger = get_logger(__name__)

_OWN: Final = frozenset(
    {
        "chunk_id",
        "chunk_tokenizer",
        "chunk_window",
        "content_token_count",
        "document_id",
        "file_id",
        "filename",
        "metadata_token_count",
        "source",
        "token_count",
    }
)
"""What the host adds to the attributes of a file that its owner has given."""


class HostVectorStores:
    """Searches through the host's router, which checks that the user may.

    Args:
        router: the host's implementation of its vector_io API.
    """

    def __init__(self, router: Any) -> None:
        self._router = router

    async def check(self, store_id: str) -> None:
        """Looks for a store.

        Raises:
            ApiError: 404 unless there is such a store for this user, 503 when the host cannot say.
        """
        try:
            await self._router.openai_retrieve_vector_store(store_id)
        except Exception as error:
            if not is_missing(error, store_id):
                raise failed("vector store", "tools", error) from error
            raise ApiError(404, f"Vector store with id '{store_id}' not found.", param="tools") from error

    async def search(self, store_id: str, query: str, options: Json) -> list[Passage]:
        """The passages that fit best.

        Raises:
            ToolError: the search did not work out.
        """
        ranking = options.get("ranking_options") or {}
        request = OpenAISearchVectorStoreRequest(
            query=query,
            filters=options.get("filters"),
            max_num_results=options["max_num_results"],
            ranking_options=_ranking(ranking),
            search_mode="hybrid" if "hybrid_search" in ranking else "vector",
        )
        try:
            page = await self._router.openai_search_vector_store(store_id, request)
        except Exception as error:
            logger.warning("the search in the vector store %r failed (%s)", store_id, type(error).__name__)
            raise ToolError(f"The files could not be searched ({type(error).__name__}).") from error
        least = ranking.get("score_threshold") or 0.0
        return [_passage(found) for found in page.data if found.score >= least]


def _ranking(ranking: Json) -> Any:
    """OpenAI's ranking options as the host has them: its rankers have names of their own."""
    weights = ranking.get("hybrid_search")
    if not weights:
        return SearchRankingOptions(score_threshold=ranking.get("score_threshold") or 0.0)
    total = weights["embedding_weight"] + weights["text_weight"]
    return SearchRankingOptions(
        ranker="weighted",
        alpha=weights["embedding_weight"] / total if total else 0.5,
        score_threshold=ranking.get("score_threshold") or 0.0,
    )


def _passage(found: Any) -> Passage:
    attributes = {name: value for name, value in (found.attributes or {}).items() if name not in _OWN}
    return Passage(
        # OGX names a document there that its file processor has made up.
        file_id=(found.attributes or {}).get("file_id") or found.file_id,
        filename=found.filename,
        score=found.score,
        attributes=attributes,
        text="\n".join(part.text for part in found.content),
    )
