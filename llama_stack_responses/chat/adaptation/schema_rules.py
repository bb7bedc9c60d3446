"""Single rules of servers for the schemas of functions, each with the change that keeps it.

Gemini names what it refuses: a keyword, or a place in a schema. OpenAI and Anthropic take no alternatives at the top.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

from ...core.late_patterns import LatePattern
from ...core.types import Json
from .adaptation import Adaptation, answers
from .message_edits import are_same
from .refusal import Refusal
from .schema_members import each_function, each_schema, with_parts

_NOTE_CHARACTERS: Final = 500
_UNKNOWN_NAME: Final = LatePattern(
    r"\bunknown name [^\w$]{1,3}([\w$-]{1,64})\W{1,3} at "
    r"|\badditionalProperties [^\w$]{1,3}([\w$-]{1,64})\W{1,3}not allowed"
    r"|\bunsupported[_ ]keyword\W{1,3}([\w$-]{1,64})",
    re.IGNORECASE,
)
"""The words of Gemini, of JSON Schema's validators (llm-d-inference-sim issue 609) and of others, with the name."""
_SELDOM_KNOWN: Final = ("allOf", "default", "deprecated", "examples", "prefixItems", "readOnly", "writeOnly")
"""Keywords that a profile leaves out; a refusal names one."""
_COMBINING: Final = ("allOf", "anyOf", "oneOf")
_ENUM: Final = LatePattern(r"\benum\[\d", re.IGNORECASE)
_REQUIRED: Final = LatePattern(r"\brequired\[\d{1,6}\]\W{1,3}property is not defined\b", re.IGNORECASE)
_EMPTY: Final = LatePattern(r"\bproperties\b\W{1,3}should be non-empty\b", re.IGNORECASE)
_UNTYPED: Final = LatePattern(r"\btype is (?:not defined|missing|required)\b", re.IGNORECASE)
"""Kimi (pi issue 4138): each part of a schema has a type."""
_TYPED_BY: Final = frozenset({"type", "$ref", "not", *_COMBINING})
_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_TOP: Final = LatePattern(r"\b(?:oneOf|anyOf|allOf)\b[^.]{0,60}\btop level\b", re.IGNORECASE)


def unknown_keywords(refusal: Refusal) -> list[str]:
    """Return the members of schemas that a refusal names as unknown, each once."""
    return list(dict.fromkeys(filter(None, chain(*_UNKNOWN_NAME.findall(refusal.words)))))


def _without_keyword(chat: Json, keyword: Any) -> Json:
    """Return a chat request whose schemas have no such keyword; by default, none that servers seldom know."""
    gone = frozenset([keyword] if isinstance(keyword, str) else _SELDOM_KNOWN)
    return each_schema(chat, lambda schema: with_parts(schema, lambda part: _without(part, gone)))


def _without(schema: Json, gone: frozenset[str]) -> Json:
    if gone.isdisjoint(schema):
        return schema
    kept = {name: value for name, value in schema.items() if name not in gone}
    return _merged(kept, schema["allOf"], required=True) if "allOf" in gone & schema.keys() else kept


def _merged(schema: Json, options: Any, *, required: bool) -> Json:
    """Return a schema with the properties of some alternatives, and what these require if all of them hold."""
    for option in options if isinstance(options, list) else ():
        if not isinstance(option, dict):
            continue
        properties = {**_object(option, "properties"), **_object(schema, "properties")}
        needed = [*_list(schema, "required"), *(_list(option, "required") if required else ())]
        schema = {**(option if required else {}), **schema}
        if properties:
            schema["properties"] = properties
        if needed:
            schema["required"] = list(dict.fromkeys(map(str, needed)))
    return schema


def _object(schema: Json, name: str) -> Json:
    value = schema.get(name)
    return value if isinstance(value, dict) else {}


def _list(schema: Json, name: str) -> list[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else []


def _noted(schema: Json, note: str) -> Json:
    """Return a schema whose description also has this note, which the model reads."""
    described = schema.get("description")
    texts = [described] if isinstance(described, str) and described else []
    return {**schema, "description": " ".join([*texts, f"({note[:_NOTE_CHARACTERS]})"])}


def _text_enum(schema: Json) -> Json:
    """Return a schema with an `enum` of texts that are not empty; any other one becomes a note."""
    values = schema.get("enum")
    if not isinstance(values, list):
        return schema
    texts = [each for each in values if isinstance(each, str) and each]
    if are_same(texts, values):
        return schema
    kept = {name: value for name, value in schema.items() if name != "enum"}
    if any(not isinstance(each, str) for each in values):
        return _noted(kept, f"enum: {json.dumps(values)}")
    return kept | {"enum": texts} if texts else kept


def _known_required(schema: Json) -> Json:
    """Return a schema that requires only properties that it has."""
    required, known = schema.get("required"), _object(schema, "properties")
    if not isinstance(required, list):
        return schema
    kept = [name for name in required if isinstance(name, str) and name in known]
    return schema if are_same(kept, required) else schema | {"required": kept}


def _with_type(schema: Json) -> Json:
    """Return a schema with a type: that of its values or members, else `string`."""
    if not _TYPED_BY.isdisjoint(schema):
        return schema
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    kinds = {_TYPES.get(type(each), "string") for each in values}
    kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    return schema | {"type": kinds.pop() if len(kinds) == 1 else kind}


def _flat(schema: Json) -> Json:
    """Return the schema of an object without alternatives at its top: it has the properties of all of them."""
    odd = {*_COMBINING, "enum", "not"} & schema.keys()
    if not odd:
        return schema
    flat = {name: value for name, value in schema.items() if name not in odd} | {"type": "object"}
    for name in _COMBINING:
        flat = _merged(flat, schema.get(name), required=name == "allOf")
    notes = {name: schema[name] for name in schema if name in odd and name != "allOf"}
    flat.setdefault("properties", {})
    return _noted(flat, json.dumps(notes)) if notes else flat


def _each_part(change: Callable[[Json], Json]) -> Callable[[Json, Any], Json]:
    """Return `apply` of a kind that changes each schema within those of the functions."""
    return lambda chat, _: each_schema(chat, lambda schema: with_parts(schema, change))


def _without_empty(chat: Json, _: Any) -> Json:
    """Return a chat request whose functions without parameters have no schema."""
    return each_function(chat, _without_parameters)


def _without_parameters(function: Json) -> Json:
    schema = function.get("parameters")
    if not isinstance(schema, dict) or schema.get("properties"):
        return function
    return {name: value for name, value in function.items() if name != "parameters"}


_TEXT_ENUMS: Final = _each_part(_text_enum)
_REQUIRED_KNOWN: Final = _each_part(_known_required)
_TYPED: Final = _each_part(_with_type)


def _flat_schemas(chat: Json, _: Any) -> Json:
    return each_schema(chat, _flat)


asks_flat: Final = answers(_TOP, _flat_schemas)
_RULES: Final = (
    ("text_enums", answers(_ENUM, _TEXT_ENUMS), _TEXT_ENUMS),
    ("known_required", answers(_REQUIRED, _REQUIRED_KNOWN), _REQUIRED_KNOWN),
    ("typed_schemas", answers(_UNTYPED, _TYPED), _TYPED),
    ("no_empty_schemas", answers(_EMPTY, _without_empty), _without_empty),
    ("flat_schemas", asks_flat, _flat_schemas),
)
_FORMS: Final = ("known_required", "no_empty_schemas")
"""Rules that take nothing from a schema."""
SCHEMA_RULES: Final = tuple(
    Adaptation(name, asks, apply, withholds=name not in _FORMS, walks_messages=True) for name, asks, apply in _RULES
)


def asks_rule(refusal: Refusal, chat: Json) -> bool:
    """Return whether a refusal is answered by one of the rules, so that nothing else of the schemas is changed."""
    return any(True for _, asks, _ in _RULES for _ in asks(refusal, chat))


def keyword_kind(others: frozenset[str]) -> Adaptation:
    """Return the kind that leaves out one keyword.

    Args:
        others: the keywords that another kind answers.
    """

    def asks(refusal: Refusal, chat: Json) -> Iterator[str]:
        named = (name for name in unknown_keywords(refusal) if name not in others)
        return (name for name in named if _without_keyword(chat, name) is not chat)

    return Adaptation("no_keyword", asks, _without_keyword, walks_messages=True)
