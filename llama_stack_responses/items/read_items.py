"""Items that the model reads as other ones."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.types import Json
from .registry import ITEM_KINDS


def read_items(items: Sequence[Json]) -> list[Json]:
    """Return the items as the model reads them, without those of which it reads nothing."""
    return [read for item in items if (read := _read(item)) is not None]


def _read(item: Json) -> Json | None:
    kind = ITEM_KINDS.get(item["type"])
    return kind.read(item) if kind and kind.read else item
