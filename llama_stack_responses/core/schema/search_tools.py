"""Declarations of the tools for web search and file search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .shapes import At, Check, array, boolean, integer, number, one_of, record, scalar_or, string, tagged

_LOCATION: Final = record(
    {
        "type": one_of("approximate"),
        "city": string(),
        "country": string(0, 2),
        "region": string(),
        "timezone": string(),
    },
    defaults={"type": "approximate"},
)

_WEB_SEARCH: Final = record(
    {
        "filters": record({"allowed_domains": array(string(1, 253))}),
        "search_content_types": array(one_of("text", "image")),
        "search_context_size": one_of("low", "medium", "high"),
        "user_location": _LOCATION,
        "external_web_access": boolean,
        "return_token_budget": one_of("default", "unlimited"),
    }
)

WEB_SEARCH_TYPES: Final = (
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)
"""The type names that OpenAI has given its web search."""

_VALUE: Final = scalar_or(array(scalar_or()))

_COMPARISON: Final = record({"key": string(1, 256), "value": _VALUE}, "key", "value")


def _compound(value: Any, at: At) -> dict[str, Any]:
    checked: dict[str, Any] = record({"filters": array(_FILTER)}, "filters")(value, at)
    return checked


_FILTER: Final = tagged(
    "filter",
    {
        **dict.fromkeys(("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"), _COMPARISON),
        **dict.fromkeys(("and", "or"), _compound),
    },
)

_WEIGHT: Final = number(0)

_RANKING: Final = record(
    {
        "ranker": one_of("auto", "default-2024-11-15"),
        "score_threshold": number(0, 1),
        "hybrid_search": record(
            {"embedding_weight": _WEIGHT, "text_weight": _WEIGHT}, "embedding_weight", "text_weight"
        ),
    }
)

_VECTOR_STORES: Final = 50
"""Maximum vector stores of one tool: each query of a call is sent to each of them."""

_FILE_SEARCH: Final = record(
    {
        "vector_store_ids": array(string(1, 256), low=1, high=_VECTOR_STORES),
        "filters": _FILTER,
        "max_num_results": integer(1, 50),
        "ranking_options": _RANKING,
    },
    "vector_store_ids",
)

SEARCH_TOOLS: Final[Mapping[str, Check]] = {
    "file_search": _FILE_SEARCH,
    **dict.fromkeys(WEB_SEARCH_TYPES, _WEB_SEARCH),
}
"""Checks of tools, by type."""
