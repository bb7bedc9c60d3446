"""The schemas of functions, simplified for model servers whose grammar compilers take a part of JSON Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...core.types import Json
from .adaptation import Adaptation
from .refusal import Refusal

_MAX_DEPTH: Final = 64
_MAX_NODES: Final = 10_000
"""Maximum number of schemas in one, with those that are referred to. What is beyond that may be anything."""
_NOTE_CHARACTERS: Final = 500

_SCHEMA: Final = re.compile(
    r"\bgrammar|\bschema|\bpattern\b|\bregex|\$ref\b|\$defs\b|unknown name \W{0,3}\$?(?:ref|schema|defs)"
    r"|function_declarations|(?:unsupported|unknown|conflicting) (?:schema )?keyword",
    re.IGNORECASE,
)
_NOTED: Final = (
    *("format", "pattern", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "multipleOf"),
    *("exclusiveMinimum", "exclusiveMaximum", "minProperties", "maxProperties", "contentEncoding", "contentMediaType"),
)
"""Keywords that become a note in the description."""
_GONE: Final = frozenset(
    {
        *("$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "$ref", "$dynamicRef", "$dynamicAnchor"),
        *("patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "dependencies"),
        *("if", "then", "else", "not", "contains", "unevaluatedProperties", "unevaluatedItems", "contentSchema"),
    }
)
_LISTS: Final = ("anyOf", "allOf", "prefixItems")
_ALONE: Final = ("items", "additionalProperties")


class _Simplified:
    """Simplifies one schema.

    Args:
        root: the whole schema, to which references refer.
    """

    def __init__(self, root: Json) -> None:
        self._root = root
        self._nodes = 0

    def of(self, schema: Any, within: tuple[str, ...] = ()) -> Any:
        """Return a schema without what compilers refuse.

        Args:
            schema: the schema.
            within: the references within which it is, and its depth.
        """
        self._nodes += 1
        if not isinstance(schema, dict):
            return schema
        if self._nodes > _MAX_NODES or len(within) > _MAX_DEPTH:
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            target = self._target(reference)
            if target is None or reference in within:
                return self._noted({"type": "object"}, schema)
            return self.of(
                {**target, **{name: each for name, each in schema.items() if name != "$ref"}}, (*within, reference)
            )
        return self._noted(self._kept(schema, (*within, "")), schema)

    def _kept(self, schema: Json, within: tuple[str, ...]) -> Json:
        kept: Json = {}
        for name, value in schema.items():
            if name in _GONE or name in _NOTED:
                continue
            if name == "const":
                kept["enum"] = [value]
            elif name == "oneOf" and isinstance(value, list):
                kept["anyOf"] = [self.of(each, within) for each in value]
            elif name in _LISTS and isinstance(value, list):
                kept[name] = [self.of(each, within) for each in value]
            elif name in _ALONE:
                kept[name] = self.of(value, within)
            elif name == "properties" and isinstance(value, dict):
                kept[name] = {each: self.of(inner, within) for each, inner in value.items()}
            else:
                kept[name] = value
        return _typed(kept)

    def _target(self, reference: str) -> Json | None:
        """Return what a reference within the schema refers to; None if there is no such thing."""
        if not reference.startswith("#"):
            return None
        found: Any = self._root
        for name in reference[1:].split("/")[1:]:
            found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else None

    @staticmethod
    def _noted(kept: Json, schema: Mapping[str, Any]) -> Json:
        """Add what was left out to the description, which the model reads."""
        notes = [f"{name}: {_shown(schema[name])}" for name in _NOTED if name in schema]
        described = schema.get("description")
        texts = [described] if isinstance(described, str) and described else []
        if notes:
            texts.append(f"({', '.join(notes)[:_NOTE_CHARACTERS]})")
        return {**kept, "description": " ".join(texts)} if texts else kept


def _typed(schema: Json) -> Json:
    """Return a schema with its type where compilers look for it: in each alternative, or beside its properties."""
    options = schema.get("anyOf")
    if isinstance(options, list) and "type" in schema:
        kind = schema.pop("type")
        schema["anyOf"] = [
            {"type": kind, **each} if isinstance(each, dict) and not {"type", "anyOf"} & each.keys() else each
            for each in options
        ]
    elif "properties" in schema and "type" not in schema:
        schema["type"] = "object"
    return schema


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def simplified(schema: Json) -> Json:
    """Return a function's schema without references, formats, patterns and other bounds; the same if it has none."""
    found: Json = _Simplified(schema).of(schema)
    return schema if found == schema else found


def _plain(tool: Json) -> Json:
    function = tool.get("function")
    parameters = function.get("parameters") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(parameters, dict):
        return tool
    plain = simplified(parameters)
    return tool if plain is parameters else tool | {"function": function | {"parameters": plain}}


def _plain_schemas(chat: Json, _: Any) -> Json:
    tools = chat.get("tools")
    if not tools:
        return chat
    plain = [_plain(tool) for tool in tools]
    return chat if all(new is old for new, old in zip(plain, tools, strict=True)) else chat | {"tools": plain}


def _asks_plain_schemas(refusal: Refusal, chat: Json) -> Iterator[None]:
    of_tools = any(place.startswith("tools") for place in refusal.places)
    if refusal.names("response_format") or not (of_tools or _SCHEMA.search(refusal.words)):
        return
    if _plain_schemas(chat, None) is not chat:
        yield None


SCHEMAS: Final = (Adaptation("plain_schemas", _asks_plain_schemas, _plain_schemas, walks_messages=True),)
