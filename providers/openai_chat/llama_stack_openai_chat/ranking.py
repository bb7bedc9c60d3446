"""Documents in the order of what they say about a query, as vLLM and llama.cpp rank them (`/rerank`)."""

from __future__ import annotations

from typing import Any

from .body import dumps

type Json = dict[str, Any]


def ranking_body(model: str, query: Any, documents: list[Any], most: int | None) -> bytes:
    """The request.

    Args:
        model: the server's name of the model.
        query: a text, or a text part of a chat message.
        documents: such texts.
        most: of the documents come back; None for all.

    Raises:
        ValueError: there is an image among them.
    """
    asked: Json = {"model": model, "query": _text(query), "documents": [_text(each) for each in documents]}
    return dumps(asked if most is None else asked | {"top_n": most})


def best_first(answer: Json) -> list[Json]:
    """The `index` of each document with its `relevance_score`.

    Raises:
        KeyError, TypeError: the answer is no ranking.
    """
    found = [{name: each[name] for name in ("index", "relevance_score")} for each in answer["results"]]
    return sorted(found, key=lambda each: -each["relevance_score"])


def _text(item: Any) -> str:
    text = item if isinstance(item, str) else getattr(item, "text", None)
    if not isinstance(text, str):
        raise ValueError("Only texts can be ranked, no images.")
    return text
