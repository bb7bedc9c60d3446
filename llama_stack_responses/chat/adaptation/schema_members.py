"""The functions of a chat request, their schemas, and the schemas in a schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ...core.types import Json
from .message_edits import are_same

LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
"""Members that are lists of schemas."""
ALONE: Final = ("items", "additionalProperties")
"""Members that are schemas."""
_ALONE: Final = frozenset({*ALONE, "contains", "if", "then", "else", "not", "propertyNames", "unevaluatedProperties"})
_NAMED: Final = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
"""Members that have schemas by name."""
_MAX_DEPTH: Final = 64
"""Depth of schemas that are changed. Those further inside stay as they are."""


def each_function(chat: Json, change: Callable[[Json], Json]) -> Json:
    """Return a chat request with each function changed; the same one if `change` returns all as they are."""
    tools = chat.get("tools")
    if not tools:
        return chat
    changed = [_with_function(tool, change) for tool in tools]
    return chat if are_same(changed, tools) else chat | {"tools": changed}


def _with_function(tool: Json, change: Callable[[Json], Json]) -> Json:
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    changed = change(function)
    return tool if changed is function else tool | {"function": changed}


def each_schema(chat: Json, change: Callable[[Json], Json]) -> Json:
    """Return a chat request with each function's schema changed; the same one if `change` returns all as they are."""
    return each_function(chat, lambda function: _with_schema(function, change))


def _with_schema(function: Json, change: Callable[[Json], Json]) -> Json:
    schema = function.get("parameters")
    if not isinstance(schema, dict):
        return function
    changed = change(schema)
    return function if changed is schema else function | {"parameters": changed}


def with_parts(schema: Any, change: Callable[[Json], Json], depth: int = _MAX_DEPTH) -> Any:
    """Return a schema in which it and each schema in it is changed, the inner ones first; the same if none is.

    Args:
        schema: the schema; anything but an object stays as it is.
        change: returns a schema changed, or the same object.
        depth: of the schemas within it that are changed.
    """
    if not isinstance(schema, dict) or not depth:
        return schema
    parts = {name: _with_part(name, each, change, depth - 1) for name, each in schema.items()}
    return change(schema if are_same([*parts.values()], [*schema.values()]) else parts)


def _with_part(name: str, value: Any, change: Callable[[Json], Json], depth: int) -> Any:
    if name in _ALONE and isinstance(value, dict):
        return with_parts(value, change, depth)
    if (name in LISTS or name == "items") and isinstance(value, list):
        return _same_or([with_parts(each, change, depth) for each in value], value)
    if name in _NAMED and isinstance(value, dict):
        named = {key: with_parts(each, change, depth) for key, each in value.items()}
        return value if are_same([*named.values()], [*value.values()]) else named
    return value


def _same_or(new: list[Any], old: Sequence[Any]) -> Any:
    return old if are_same(new, old) else new
