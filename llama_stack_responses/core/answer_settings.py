"""Settings of the model's answer, which requests have and an item of the input changes."""

from __future__ import annotations

from typing import Final

from .shapes import an_object, boolean, object_of, one_of, string, tagged

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

UPDATED_FORMAT: Final = tagged({"text": _TEXT, "json_schema": _JSON_SCHEMA})
"""The check of the format that an item of the input changes."""
