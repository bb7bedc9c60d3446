"""The texts that moderation checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from ...core.types import Json
from ...items.read_items import read_items
from ...items.refused_input import is_message, without_refused
from ...items.registry import ITEM_KINDS
from ...requests.request import CreateRequest

_TEXTS: Final = ("text", "refusal", "output", "content", "stdout", "stderr")
"""Keys that hold text in items from outside."""


def input_texts(request: CreateRequest, items: Sequence[Json]) -> list[str]:
    """Return the texts of a request: of its prompt's variables, its messages and its outputs of calls.

    Args:
        items: its input with references resolved. Input that was refused earlier is left out: no model will see it.
    """
    variables = (request.prompt or {}).get("variables") or {}
    messages = [item for item in without_refused(read_items(items)) if is_message(item)]
    return [text for text in _texts([*variables.values(), *messages], _TEXTS) if text.strip()]


def output_texts(output: Iterable[Json]) -> list[str]:
    """Return the texts that a model generated: messages, reasoning, the arguments of calls."""
    written = (
        text
        for item in output
        if (kind := ITEM_KINDS.get(item["type"]))
        for key, members in kind.written.items()
        for text in _texts(item.get(key), members)
    )
    return [text for text in written if text.strip()]


def _texts(value: Any, keys: Collection[str] | None) -> Iterator[str]:
    """Yield the strings of a value, and of an object's values only those at these keys; None for all."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, keys)
    elif isinstance(value, dict):
        for key in value if keys is None else keys:
            yield from _texts(value.get(key), keys)
