"""Ranking of documents by relevance to a query, by vLLM's and llama.cpp's `/rerank`."""

from __future__ import annotations

from typing import Any

from .json_encoding import dumps

type Json = dict[str, Any]


def ranking_body(model: str, query: Any, documents: list[Any], top_n: int | None) -> bytes:
    """Encode the request.

    Args:
        model: the server's name of the model.
        query: a text, or a text part of a chat message.
        documents: texts or text parts.
        top_n: maximum number of documents in the answer; None for all.

    Raises:
        ValueError: there is an image among them.
    """
    body: Json = {"model": model, "query": _text(query), "documents": [_text(each) for each in documents]}
    return dumps(body if top_n is None else body | {"top_n": top_n})


def best_first(answer: Json) -> list[Json]:
    """Return the `index` and `relevance_score` of each document, the best first.

    Raises:
        KeyError, TypeError: the answer is not a ranking.
    """
    results = [{name: each[name] for name in ("index", "relevance_score")} for each in answer["results"]]
    return sorted(results, key=lambda each: -each["relevance_score"])


def _text(item: Any) -> str:
    text = item if isinstance(item, str) else getattr(item, "text", None)
    if not isinstance(text, str):
        raise ValueError("Only texts can be ranked, not images.")
    return text
