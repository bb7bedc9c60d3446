"""Settings of the model's answer, which requests have and items of the input update."""

from __future__ import annotations

from typing import Any, Final

from ..item_fields import OWN_ID
from ..shapes import Location, an_object, boolean, invalid, object_of, one_of, schema_of, string, tagged, takes

EFFORT: Final = one_of("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The check of a reasoning effort."""

_TEXT: Final = object_of({})
_JSON_SCHEMA: Final = object_of(
    {"name": string(1, 64, "[a-zA-Z0-9_-]+"), "description": string(), "schema": an_object, "strict": boolean},
    "name",
    "schema",
)

FORMAT: Final = tagged({"text": _TEXT, "json_object": object_of({}), "json_schema": _JSON_SCHEMA})
"""The check of the format of a request's answer."""

_UPDATED_FORMAT: Final = tagged({"text": _TEXT, "json_schema": _JSON_SCHEMA})

_UPDATE: Final = object_of(
    {
        "id": OWN_ID,
        "reasoning": object_of({"effort": EFFORT}),
        "text": object_of({"format": _UPDATED_FORMAT}, "format"),
    }
)
_GIVEN: Final = [{"required": [name], "properties": {name: {"type": "object"}}} for name in ("reasoning", "text")]


@takes({**schema_of(_UPDATE), "anyOf": _GIVEN})
def configuration_update(value: Any, at: Location) -> dict[str, Any]:
    """Check an item that changes the reasoning effort, the format, or both."""
    update: dict[str, Any] = _UPDATE(value, at)
    if update.keys().isdisjoint({"reasoning", "text"}):
        raise invalid(at, "Expected 'reasoning', 'text', or both.")
    return update
