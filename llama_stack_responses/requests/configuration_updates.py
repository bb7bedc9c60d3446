"""Settings that items of a conversation change for the responses after them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..core.types import Json
from ..items.kinds.configuration import CONFIGURATION
from .request import CreateRequest


def configured(request: CreateRequest, items: Sequence[Json]) -> tuple[CreateRequest, Sequence[Json]]:
    """Apply the updates among the items to the request: the last of each setting replaces that of the request.

    Returns:
        The request and the items without the updates.
    """
    updates = [item for item in items if item["type"] == CONFIGURATION]
    if not updates:
        return request, items
    reasoning, text = dict(request.reasoning or {}), dict(request.text or {})
    for update in updates:
        reasoning |= update.get("reasoning", {})
        text |= update.get("text", {})
    return replace(request, reasoning=reasoning or None, text=text or None), without_updates(items)


def without_updates(items: Iterable[Json]) -> list[Json]:
    """Return the items that the model sees."""
    return [item for item in items if item["type"] != CONFIGURATION]
