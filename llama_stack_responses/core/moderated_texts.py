"""The texts that moderation checks, and the items that no later model sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from .schema.items import ANSWERS
from .schema.request import CreateRequest
from .types import Json

_ANSWERED: Final = frozenset(ANSWERS.values())

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
    messages = [item for item in without_refused(items) if _is_message(item)]
    return [text for text in _texts([*variables.values(), *messages], _TEXTS) if text.strip()]


def output_texts(output: Iterable[Json]) -> list[str]:
    """Return the texts that a model generated: messages, reasoning, the arguments of calls."""
    values = (item[key] for item in output for key in _GENERATED if key in item)
    return [text for value in values for text in _texts(value, _GENERATED_TEXTS) if text.strip()]


def without_refused(items: Sequence[Json]) -> list[Json]:
    """Return the items without input that was refused before a model answered, so that no later model sees it either.

    This is the input before a message that only refuses and is incomplete: the user's messages, and outputs of calls,
    with their calls unless these have other outputs.
    """
    hidden: set[int] = set()
    for number, item in enumerate(items):
        if _is_only_refusal(item):
            hidden.add(number)
            hidden.update(_led_to(items, number))
    if not hidden:
        return list(items)
    visible = [item for number, item in enumerate(items) if number not in hidden]
    answered = {item["call_id"] for item in visible if item["type"] in _ANSWERED and "call_id" in item}
    lost = {items[number]["call_id"] for number in hidden if "call_id" in items[number]} - answered
    return [item for item in visible if item.get("call_id") not in lost]


def _led_to(items: Sequence[Json], number: int) -> Iterator[int]:
    while number > 0 and _is_message(items[number - 1]) and items[number - 1].get("role", "user") == "user":
        number -= 1
        yield number


def _is_message(item: Json) -> bool:
    return item["type"] == "message" or item["type"] in _ANSWERED


def _is_only_refusal(item: Json) -> bool:
    if item["type"] != "message" or item["role"] != "assistant" or item.get("status") != "incomplete":
        return False
    return [part["type"] for part in item["content"]] == ["refusal"]


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
