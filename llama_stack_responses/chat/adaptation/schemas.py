"""The schemas of functions, simplified for model servers whose grammar compilers take a part of JSON Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...core.late_patterns import LatePattern
from ...core.types import Json
from .adaptation import Adaptation, Form, answers
from .alternatives import LONE, lone_alternatives
from .calls import names_call_ids
from .refusal import Refusal
from .schema_members import ALONE, LISTS, each_function, each_schema, with_parts
from .schema_rules import SCHEMA_RULES, asks_flat, asks_rule, keyword_kind, unknown_keywords

_MAX_DEPTH: Final = 64
_MAX_NODES: Final = 10_000
"""Maximum number of schemas in one, with those that are referred to. What is beyond that may be anything."""
_NOTE_CHARACTERS: Final = 500

_SCHEMA: Final = LatePattern(
    r"\bgrammar|\bschema|\bpattern\b|\bregex|\$ref\b|\$defs\b|unknown name \W{0,3}\$?(?:ref|schema|defs)"
    r"|\bitems: missing\b|\bproto field is not repeating\b"
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
            elif name in LISTS and isinstance(value, list):
                kept[name] = [self.of(each, within) for each in value]
            elif name in ALONE:
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
    """Return a schema with its type where compilers look for it: in each alternative, or beside its properties.

    It has one type, and an array says of what it is (Gemini).
    """
    kinds = schema.get("type")
    if isinstance(kinds, list) and "anyOf" not in schema:
        named = [each for each in kinds if each != "null"] or kinds
        schema |= {"type": named[0]} if len(named) == 1 else {"type": named}
        if len(named) == 1 and len(kinds) > 1:
            schema["nullable"] = True
    if schema.get("type") == "array" and "items" not in schema and "prefixItems" not in schema:
        schema["items"] = {"type": "string"}
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


def _plain_schemas(chat: Json, _: Any) -> Json:
    return each_schema(chat, simplified)


_CLOSED: Final = LatePattern(
    r"\badditional_?properties\b[^.]{0,60}(?:cannot find field|not (?:\w+ )?(?:support|allow|permit)"
    r"|unsupported|unknown|unrecogni[sz]ed|unexpected)"
    r"|(?:unknown|unsupported|unrecogni[sz]ed|unexpected)\b[^.]{0,40}\badditional_?properties\b",
    re.IGNORECASE,
)


def _open(schema: Json) -> Json:
    """Return a schema without `additionalProperties`; the same if it has none."""
    opened: Json = with_parts(schema, _without_closing)
    return opened


def _without_closing(schema: Json) -> Json:
    if "additionalProperties" not in schema:
        return schema
    return {name: each for name, each in schema.items() if name != "additionalProperties"}


def _open_schemas(chat: Json, _: Any) -> Json:
    return each_schema(chat, _open)


_OBJECT: Final = LatePattern(
    r"\b(?:input_?)?schema\b.{0,80}\btype\b.{0,60}\bobject\b"
    r"|\binput_?schema(?:\.\w+)?\.type\b|\bobject schema\b[^.]{0,40}\b(?:missing|properties)"
    r"|\b(?:parameters|input_?schema)(?:\.\w+){0,2}\b[^.]{0,60}\b(?:required|missing|null|none)\b"
    r"|\b(?:required|missing)\b[^.]{0,60}\b(?:parameters|input_?schema)\b",
    re.IGNORECASE,
)
_NO_DESCRIPTION: Final = LatePattern(
    r"\bdescription\b[^.]{0,80}\b(?:length|empty|required|missing|blank|at least|minimum|null|none)\b"
    r"|\b(?:empty|required|missing|blank|length|null)\b[^.]{0,80}\bdescription\b",
    re.IGNORECASE,
)


def _of_object(function: Json) -> Json:
    """Return a function whose schema is that of an object, which says so."""
    schema = function.get("parameters")
    known = schema if isinstance(schema, dict) else {}
    if known.get("type") == "object" and isinstance(known.get("properties"), dict):
        return function
    return function | {"parameters": {"properties": {}, **known, "type": "object"}}


def _described(function: Json) -> Json:
    """Return a function with a description: its name, if it has none."""
    described = function.get("description")
    if isinstance(described, str) and described.strip():
        return function
    return function | {"description": str(function.get("name"))}


def _object_schemas(chat: Json, _: Any) -> Json:
    return each_function(chat, _of_object)


def _described_tools(chat: Json, _: Any) -> Json:
    return each_function(chat, _described)


def _asks_object_schemas(refusal: Refusal, chat: Json) -> Iterator[None]:
    if any(True for _ in asks_flat(refusal, chat)):
        return
    if _OBJECT.search(refusal.subject) and _object_schemas(chat, None) is not chat:
        yield None


def _asks_plain_schemas(refusal: Refusal, chat: Json) -> Iterator[None]:
    of_tools = any(place.startswith("tools") for place in refusal.places)
    if asks_rule(refusal, chat) or (LONE.search(refusal.words) and lone_alternatives(chat, None) is not chat):
        return
    unknown = unknown_keywords(refusal)
    if unknown and _PLAIN.isdisjoint(unknown):
        return
    if refusal.names("response_format") or names_call_ids(refusal) or not (of_tools or _SCHEMA.search(refusal.subject)):
        return
    if _plain_schemas(chat, None) is not chat:
        yield None


_PLAIN: Final = _GONE | {*_NOTED, "const", "oneOf"}
"""Keywords without which plain schemas are."""

SCHEMAS: Final = (
    *SCHEMA_RULES,
    keyword_kind(_PLAIN | {"additionalProperties"}),
    Form("object_schemas", _asks_object_schemas, _object_schemas, walks_messages=True),
    Form("described_tools", answers(_NO_DESCRIPTION, _described_tools), _described_tools, walks_messages=True),
    Adaptation("plain_schemas", _asks_plain_schemas, _plain_schemas, walks_messages=True),
    Form("lone_alternatives", answers(LONE, lone_alternatives), lone_alternatives, walks_messages=True),
    Adaptation("open_schemas", answers(_CLOSED, _open_schemas), _open_schemas, walks_messages=True),
)
