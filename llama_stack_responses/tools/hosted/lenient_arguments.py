"""Arguments of calls of hosted tools, read leniently: models do not always keep to the declared parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...core.decoded_arguments import decoded_arguments

MAX_QUERIES: Final = 5
"""Maximum queries of one search call."""


def named_arguments(arguments: str) -> Mapping[str, Any]:
    """Decode a call's arguments; return nothing if they are not a JSON object."""
    try:
        value = decoded_arguments(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def search_queries(arguments: str) -> list[str] | None:
    """Return the first queries of a search call; None if it has no valid ones.

    Some models send a single `query`, as other search tools take.
    """
    named = named_arguments(arguments)
    argument = named.get("queries") or named.get("query")
    queries = [argument] if isinstance(argument, str) else argument
    if not isinstance(queries, list) or not all(isinstance(each, str) and each.strip() for each in queries):
        return None
    return queries[:MAX_QUERIES]
