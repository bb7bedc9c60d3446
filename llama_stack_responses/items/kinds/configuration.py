"""The item that changes settings of the responses after it."""

from __future__ import annotations

from typing import Any, Final

from ...core.answer_settings import EFFORT, UPDATED_FORMAT
from ...core.item_fields import OWN_ID
from ...core.shapes import Location, invalid, object_of, schema_of, takes
from ..form import ItemType
from ..kind import ItemKind

CONFIGURATION: Final = "configuration_update"
"""The type of the item."""

_UPDATE: Final = object_of(
    {
        "id": OWN_ID,
        "reasoning": object_of({"effort": EFFORT}),
        "text": object_of({"format": UPDATED_FORMAT}, "format"),
    }
)
_GIVEN: Final = [{"required": [name], "properties": {name: {"type": "object"}}} for name in ("reasoning", "text")]


@takes({**schema_of(_UPDATE), "anyOf": _GIVEN})
def _update(value: Any, at: Location) -> dict[str, Any]:
    """Check an item that changes the reasoning effort, the format, or both."""
    update: dict[str, Any] = _UPDATE(value, at)
    if update.keys().isdisjoint({"reasoning", "text"}):
        raise invalid(at, "Expected 'reasoning', 'text', or both.")
    return update


KINDS: Final = (ItemKind(ItemType(CONFIGURATION, "cfg", has_status=False), _update),)
