"""The texts that moderation checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from ...core.refused_input import is_message, without_refused
from ...core.schema.request import CreateRequest
from ...core.types import Json

_TEXTS: Final = ("text", "refusal", "output", "content", "stdout", "stderr")
"""Keys that hold text in items from outside."""

_GENERATED: Final = (
    "content",
    "summary",
    "arguments",
    "input",
    "code",
    "queries",
    "revised_prompt",
    "action",
    "actions",
    "operation",
)
"""Keys of items that hold what a model generated; arguments of hosted tools are in several of them."""

_GENERATED_TEXTS: Final = (
    "text",
    "refusal",
    "query",
    "queries",
    "url",
    "pattern",
    "commands",
    "command",
    "path",
    "diff",
)
"""Keys of their values that hold text."""


def input_texts(request: CreateRequest, items: Sequence[Json]) -> list[str]:
    """Return the texts of a request: of its prompt's variables, its messages and its outputs of calls.

    Args:
        items: its input with references resolved. Input that was refused earlier is left out: no model will see it.
    """
    variables = (request.prompt or {}).get("variables") or {}
    messages = [item for item in without_refused(items) if is_message(item)]
    return [text for text in _texts([*variables.values(), *messages], _TEXTS) if text.strip()]


def output_texts(output: Iterable[Json]) -> list[str]:
    """Return the texts that a model generated: messages, reasoning, the arguments of calls."""
    values = (item[key] for item in output for key in _GENERATED if key in item)
    return [text for value in values for text in _texts(value, _GENERATED_TEXTS) if text.strip()]


def _texts(value: Any, keys: Sequence[str]) -> Iterator[str]:
    """Yield the strings of a value, and of an object's values only those at these keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, keys)
    elif isinstance(value, dict):
        for key in keys:
            yield from _texts(value.get(key), keys)
