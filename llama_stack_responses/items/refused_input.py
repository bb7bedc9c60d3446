"""Input that was refused before a model answered, which no later model sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..core.types import Json
from .registry import ANSWERS

_ANSWERED: Final = frozenset(ANSWERS.values())


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
    while number > 0 and is_message(items[number - 1]) and items[number - 1].get("role", "user") == "user":
        number -= 1
        yield number


def is_message(item: Json) -> bool:
    """Return whether an item is a message or the output of a call."""
    return item["type"] == "message" or item["type"] in _ANSWERED


def _is_only_refusal(item: Json) -> bool:
    if item["type"] != "message" or item["role"] != "assistant" or item.get("status") != "incomplete":
        return False
    return [part["type"] for part in item["content"]] == ["refusal"]
