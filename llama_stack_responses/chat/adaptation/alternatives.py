"""Schemas in which `anyOf` stands alone, as Gemini takes them.

Gemini refuses a schema with `anyOf` and anything beside it, such as a description or a default. It reads `oneOf` and a
list of types as `anyOf`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from ...core.late_patterns import LatePattern
from ...core.types import Json
from .schema_members import each_schema, with_parts

LONE: Final = LatePattern(r"\balongside any_?of\b|\bany_?of\b[^.]{0,40}\bmust be the only\b", re.IGNORECASE)
"""Words of the refusal."""

_ALTERNATIVES: Final = ("anyOf", "oneOf", "type")
_NULL: Final[Json] = {"type": "null"}
_WHOLE: Final = frozenset({"$defs", "definitions", "$schema", "$id"})
"""Members of a whole schema, to which others refer: they stay beside the alternatives."""
_OF_TYPES: Final = {
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"}),
    "object": frozenset({"properties", "required", "additionalProperties", "patternProperties", "propertyNames"}),
}
"""Members that only a schema of this type has."""
_MAX_CHARACTERS: Final = 1_000_000
"""Maximum characters of JSON that are copied into the alternatives of one schema; those beyond get nothing."""


class _Lone:
    """Moves what stands beside the alternatives of one whole schema into them."""

    def __init__(self) -> None:
        self._left = _MAX_CHARACTERS

    def changed(self, schema: Json) -> Json:
        """Return a schema whose alternatives have nothing beside them; the same if there is nothing to move.

        In the schemas within it, they have nothing beside them already.
        """
        name = next((each for each in _ALTERNATIVES if isinstance(schema.get(each), list) and schema[each]), None)
        beside = {each: value for each, value in schema.items() if each != name and each not in _WHOLE}
        if name is None or not beside:
            return schema
        options = schema[name] if name != "type" else [{"type": each} for each in schema[name]]
        return {each: schema[each] for each in schema if each in _WHOLE} | self._folded(options, beside)

    def _folded(self, options: list[Any], beside: Json) -> Json:
        some = [each for each in options if each != _NULL]
        if len(some) == 1:
            nullable = {"nullable": True} if len(options) > 1 else {}
            return self.changed(self._merged(some[0], beside | nullable))
        # The default is one of an alternative, of which is not known.
        beside = {name: value for name, value in beside.items() if name != "default"}
        merged = (each if each == _NULL else self.changed(self._merged(each, beside)) for each in options)
        return {"anyOf": list(merged)}

    def _merged(self, option: Any, beside: Json) -> Json:
        """Return an alternative with what stands beside it, as far as that is for its type."""
        own = option if isinstance(option, dict) else {}
        kind = own.get("type", beside.get("type"))
        others = {name for each, names in _OF_TYPES.items() if isinstance(kind, str) and each != kind for name in names}
        added = {name: value for name, value in beside.items() if name not in others}
        self._left -= len(json.dumps(added))
        return {**added, **own, **_both(added, own)} if self._left > 0 else own


def _both(outer: Json, own: Json) -> Json:
    """Return the members of which both schemas say something that has to hold."""
    both: Json = {}
    for name in outer.keys() & own.keys() & {"description", "properties", "required"}:
        match outer[name], own[name]:
            case str(one), str(other):
                both[name] = f"{one} {other}"
            case dict(one), dict(other):
                both[name] = one | other
            case list(one), list(other):
                both[name] = [*one, *(each for each in other if each not in one)]
    return both


def lone_alternatives(chat: Json, _: Any) -> Json:
    """Return a chat request in whose schemas `anyOf` stands alone; the same one if it does."""
    changed = each_schema(chat, _lone)
    form = chat.get("response_format") or {}
    schema = (form.get("json_schema") or {}).get("schema")
    lone = _lone(schema) if isinstance(schema, dict) else schema
    if lone is schema:
        return changed
    return changed | {"response_format": form | {"json_schema": form["json_schema"] | {"schema": lone}}}


def _lone(schema: Json) -> Json:
    found: Json = with_parts(schema, _Lone().changed)
    return found
