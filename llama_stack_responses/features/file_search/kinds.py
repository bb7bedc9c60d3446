"""The declaration of the tool for file search, and the item of its calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ...core.exchanges import exchange
from ...core.item_fields import CALL_STATUS, ID, OWN_ID, TEXT
from ...core.shapes import (
    Location,
    an_object,
    array,
    integer,
    invalid,
    number,
    object_of,
    one_of,
    scalar_or,
    schema_of,
    string,
    tagged,
    takes,
)
from ...core.types import Json
from ...items.form import ItemForm, stage_events
from ...items.kind import ItemKind, Kinds, OfferedTool, ToolType
from ...items.view import CallView, Link, Shown, objects

_VALUE: Final = scalar_or(array(scalar_or()))

_COMPARISON: Final = object_of({"key": string(1, 256), "value": _VALUE}, "key", "value")


def _compound(value: Any, at: Location) -> dict[str, Any]:
    checked: dict[str, Any] = object_of({"filters": array(_FILTER)}, "filters")(value, at)
    return checked


_FILTER: Final = tagged(
    {
        **dict.fromkeys(("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"), _COMPARISON),
        **dict.fromkeys(("and", "or"), _compound),
    },
)

_FILTER_VALUES: Final = 1_024
_FILTER_CHARACTERS: Final = 65_536
_FILTER_DEPTH: Final = 16
"""Maximum values of the filters of one tool, their characters, and how deep filters may be nested.

Every search of a response evaluates the filters for the passages of every store.
"""


def _check_filters(filters: Any, at: Location) -> None:
    """Raise a 400 for filters that are too large or too deep, before they are checked by recursion."""
    level, values, characters, depth = [filters], 0, 0, 0
    while level:
        depth += any(isinstance(value, dict) for value in level)
        values += len(level)
        characters += sum(len(value) for value in level if isinstance(value, str))
        if values > _FILTER_VALUES or characters > _FILTER_CHARACTERS or depth > _FILTER_DEPTH:
            why = (
                f"the filters are too large. Expected at most {_FILTER_VALUES} values of {_FILTER_CHARACTERS} "
                f"characters together, nested at most {_FILTER_DEPTH} times."
            )
            raise invalid(at, why)
        level = [each for value in level for each in _members(value)]


def _members(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


@takes(schema_of(_FILTER))
def _filters(value: Any, at: Location) -> dict[str, Any]:
    if at.limits.bounded:
        _check_filters(value, at)
    filters: dict[str, Any] = _FILTER(value, at)
    return filters


_WEIGHT: Final = number(0)

_RANKING: Final = object_of(
    {
        "ranker": one_of("auto", "default-2024-11-15"),
        "score_threshold": number(0, 1),
        "hybrid_search": object_of(
            {"embedding_weight": _WEIGHT, "text_weight": _WEIGHT}, "embedding_weight", "text_weight"
        ),
    }
)

_VECTOR_STORES: Final = 50
"""Maximum vector stores of one tool: each query of a call is sent to each of them."""

_FILE_SEARCH: Final = object_of(
    {
        "vector_store_ids": array(string(1, 256), low=1, high=_VECTOR_STORES),
        "filters": _filters,
        "max_num_results": integer(1, 50),
        "ranking_options": _RANKING,
    },
    "vector_store_ids",
)

_FOUND: Final = object_of({"file_id": ID, "filename": TEXT, "score": number(), "text": TEXT, "attributes": an_object})

_ITEM: Final = object_of(
    {"id": OWN_ID, "queries": array(TEXT), "status": CALL_STATUS, "results": array(_FOUND)}, "queries"
)

FORM: Final = ItemForm(
    "file_search_call",
    "fs",
    stages=stage_events("file_search_call", "in_progress", "searching", "completed"),
    results={"results": None},
)


def _exchange(item: Json) -> Json:
    passages = [f"{result.get('filename', '')}\n{result.get('text', '')}" for result in item.get("results") or ()]
    output = "\n\n".join(passages) or "(The results are no longer available.)"
    return exchange("file_search", {"queries": item["queries"]}, output)


def _queries(item: Shown) -> Any:
    return item.get("queries") or []


def _summary(item: Shown) -> Any:
    queries = _queries(item)
    return queries[0] if isinstance(queries, list) and queries else ""


def _links(item: Shown) -> Iterable[Link]:
    for found in objects(item.get("results")):
        file_id = found.get("file_id")
        yield Link(None, found.get("filename") or file_id, found.get("text"), file_id)


_SEARCH_CALL: Final = ItemKind(
    FORM,
    _ITEM,
    _exchange,
    CallView("file_search", arguments=_queries, summary=_summary, links=_links),
    written={"queries": ()},
    includable=("file_search_call.results",),
)

_OFFERED: Final = OfferedTool("File search in vector stores", ids="vector_store_ids", example="vs_…, vs_…")

KINDS: Final = Kinds(items=(_SEARCH_CALL,), tools=(ToolType("file_search", _FILE_SEARCH, offered=_OFFERED),))
