"""The host's vector stores."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from ..core.errors import ApiError
from ..core.types import Json
from ..logs import get_logger
from ..tools.hosted.vector_stores import Passage
from ..tools.tool_function import ToolError
from .failures import failed, is_missing
from .platform import OpenAISearchVectorStoreRequest, SearchRankingOptions

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
"""Attributes that the host adds to those that a file's owner has set."""

_SHOWN_MODELS: Final = 5


class HostVectorStores:
    """Searches vector stores through the host's router, which checks the user's access.

    Args:
        router: the host's implementation of its vector_io API.
    """

    def __init__(self, router: Any) -> None:
        self._router = router

    async def check(self, store_id: str) -> None:
        """Check that a store exists for this user.

        Raises:
            ApiError: 404 if it does not; 503 if the host fails.
        """
        try:
            await self._router.openai_retrieve_vector_store(store_id)
        except Exception as error:
            if not is_missing(error, store_id):
                raise failed("vector store", "tools", error) from error
            raise ApiError(404, f"Vector store with id '{store_id}' not found.", param="tools") from error

    async def search(self, store_id: str, query: str, options: Json) -> list[Passage]:
        """Return the best matching passages.

        Raises:
            ToolError: the search failed.
        """
        ranking = options["ranking_options"]
        request = OpenAISearchVectorStoreRequest(
            query=query,
            filters=options["filters"],
            max_num_results=options["max_num_results"],
            ranking_options=_ranking(ranking),
            search_mode="hybrid" if "hybrid_search" in ranking else "vector",
        )
        try:
            page = await self._router.openai_search_vector_store(store_id, request)
        except Exception as error:
            logger.warning("search in a vector store failed: %r (%s)", store_id, type(error).__name__)
            raise ToolError(f"The files could not be searched ({type(error).__name__}).") from error
        good = (match for match in page.data if match.score >= ranking["score_threshold"])
        return [_passage(match) for match in islice(good, options["max_num_results"])]


def take_default_embedding_model(router: Any) -> None:
    """Have new vector stores that name no embedding model use the stack's only one.

    OpenAI's clients name none, and the host then answers that there is no model 'None', unless a default is configured.

    Args:
        router: the host's implementation of its vector_io API.
    """
    create = router.openai_create_vector_store

    async def created(params: Any) -> Any:
        named = {**(params.metadata or {}), **(params.model_extra or {})}
        configured = getattr(router.vector_stores_config, "default_embedding_model", None)
        if not (named.get("embedding_model") or configured):
            params = params.model_copy(update={"embedding_model": await _only_embedding_model(router)})
        return await create(params)

    router.openai_create_vector_store = created


async def _only_embedding_model(router: Any) -> str:
    """Return the name of the embedding model that this user may access and whose length of vectors is known.

    Raises:
        ValueError: there is none, or there are several; the host makes it a 400.
    """
    models = await router.routing_table.get_all_with_type("model")
    embedding = [each for each in models if each.model_type == "embedding"]
    names = sorted(each.identifier for each in embedding if (each.metadata or {}).get("embedding_dimension"))
    if not names:
        raise ValueError(
            "This stack has no embedding model for a vector store: list one in 'embedding_models' of an inference "
            "provider, which the starter template takes from the variable EMBEDDING_MODELS, by its name in /v1/models "
            "of the model server."
        )
    if len(names) > 1:
        shown = ", ".join(names[:_SHOWN_MODELS])
        raise ValueError(
            f"This stack has several embedding models: name one of them as 'embedding_model' in the request, such as "
            f"{shown}, or as 'vector_stores.default_embedding_model' in the stack's configuration."
        )
    return str(names[0])


def _ranking(ranking: Json) -> Any:
    """Return OpenAI's ranking options in the host's form, which has other names for rankers."""
    weights = ranking.get("hybrid_search")
    if not weights:
        return SearchRankingOptions(score_threshold=ranking["score_threshold"])
    total = weights["embedding_weight"] + weights["text_weight"]
    return SearchRankingOptions(
        ranker="weighted",
        alpha=weights["embedding_weight"] / total if total else 0.5,
        score_threshold=ranking["score_threshold"],
    )


def _passage(match: Any) -> Passage:
    attributes = {name: value for name, value in (match.attributes or {}).items() if name not in _OWN}
    return Passage(
        # In `file_id`, OGX has the id of a document that its file processor created.
        file_id=(match.attributes or {}).get("file_id") or match.file_id,
        filename=match.filename,
        score=match.score,
        attributes=attributes,
        text="\n".join(part.text for part in match.content),
    )
