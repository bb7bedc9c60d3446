"""Settings that items of a conversation change for the responses after them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .schema.items import CONFIGURATION
from .schema.request import CreateRequest
from .types import Json


def configured(request: CreateRequest, items: Iterable[Json]) -> CreateRequest:
    """Return the request with the updates among the items: the last of each setting replaces that of the request."""
    updates = [item for item in items if item["type"] == CONFIGURATION]
    if not updates:
        return request
    reasoning, text = dict(request.reasoning or {}), dict(request.text or {})
    for update in updates:
        reasoning |= update.get("reasoning", {})
        text |= update.get("text", {})
    return replace(request, reasoning=reasoning or None, text=text or None)


def without_updates(items: Iterable[Json]) -> list[Json]:
    """Return the items that the model sees."""
    return [item for item in items if item["type"] != CONFIGURATION]
