"""Items of the tools that this server runs, as clients send them back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .item_fields import ID, OWN_ID, TEXT
from .shapes import Check, an_object, array, data, number, one_of, record, tagged

_CALL_STATUS: Final = one_of("in_progress", "searching", "interpreting", "completed", "failed", "incomplete")

_SOURCES: Final = array(tagged("source", {"url": record({"url": TEXT}, "url")}))

_WEB_SEARCH_ACTIONS: Final[Mapping[str, Check]] = {
    "search": record({"query": TEXT, "queries": array(TEXT), "sources": _SOURCES}),
    "open_page": record({"url": TEXT}),
    "find_in_page": record({"url": TEXT, "pattern": TEXT}, "url", "pattern"),
}

_FOUND: Final = record({"file_id": ID, "filename": TEXT, "score": number(), "text": TEXT, "attributes": an_object})

_PRINTED: Final[Mapping[str, Check]] = {"logs": record({"logs": TEXT}, "logs"), "image": record({"url": data}, "url")}

HOSTED_ITEMS: Final[Mapping[str, Check]] = {
    "web_search_call": record(
        {"id": OWN_ID, "action": tagged("action", _WEB_SEARCH_ACTIONS), "status": _CALL_STATUS}, "action"
    ),
    "file_search_call": record(
        {"id": OWN_ID, "queries": array(TEXT), "status": _CALL_STATUS, "results": array(_FOUND)}, "queries"
    ),
    "code_interpreter_call": record(
        {
            "id": OWN_ID,
            "code": TEXT,
            "container_id": ID,
            "status": _CALL_STATUS,
            "outputs": array(tagged("output", _PRINTED)),
        },
        "container_id",
    ),
}
"""Checks of items, by type."""
