"""The text of a response that is indexed: a bounded part of all that it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from ....core.surrogates import without_surrogates
from ....core.types import Json

_NAMES_BYTES: Final = 4 * 1024
_QUESTION_BYTES: Final = 24 * 1024
_ANSWER_BYTES: Final = 20 * 1024
_CALLS_BYTES: Final = 16 * 1024
MAX_BYTES: Final = _NAMES_BYTES + _QUESTION_BYTES + _ANSWER_BYTES + _CALLS_BYTES
"""Bytes of the text of one response: ids and errors, input messages, the answer, and calls with their results."""

_LEFT_OUT: Final = frozenset({"type", "status", "role", "phase", "object", "encrypted_content", "logprobs", "b64_json"})
"""Fields that say nothing in words."""
_BINARY_CHARACTERS: Final = 1_000
"""Characters of ASCII without a space that are no text."""
_MAX_VALUES: Final = 5_000
"""Values of an item that are looked at."""


def text_of(response: Json, inputs: Sequence[Json]) -> str:
    """Return the text of a response and of its own input."""
    output = response.get("output") or ()
    messages = [each for each in inputs if _is_message(each)]
    answers = [each for each in output if _is_message(each)]
    others = [each for each in (*inputs, *output) if not _is_message(each)]
    parts = (
        _text(_names(response, [*inputs, *output]), _NAMES_BYTES),
        _text(_said(messages), _QUESTION_BYTES),
        _text(_said(answers), _ANSWER_BYTES),
        _text(_said(others), _CALLS_BYTES),
    )
    return "\n".join(filter(None, parts))


def _is_message(item: Mapping[str, Any]) -> bool:
    return bool(item.get("type", "message") == "message")


def _names(response: Json, items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield ids, the error and metadata."""
    error, conversation = response.get("error"), response.get("conversation")
    yield from _strings([response.get("id"), response.get("previous_response_id"), conversation])
    yield from _strings([error, response.get("incomplete_details"), response.get("metadata")])
    for item in items:
        yield from (value for name in ("id", "call_id") if isinstance(value := item.get(name), str))


def _said(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    return chain.from_iterable(
        _strings({name: value for name, value in item.items() if name not in ("id", "call_id")}) for item in items
    )


def _strings(value: Any) -> Iterator[str]:
    """Yield the texts of a value, in order."""
    waiting, seen = [value], 0
    while waiting and seen < _MAX_VALUES:
        each, seen = waiting.pop(), seen + 1
        if isinstance(each, str):
            if not _is_binary(each):
                yield each
        elif isinstance(each, Mapping):
            waiting += reversed([field for name, field in each.items() if name not in _LEFT_OUT])
        elif isinstance(each, (list, tuple)):
            waiting += reversed(each[:_MAX_VALUES])


def _is_binary(text: str) -> bool:
    """Return whether a text is the content of a file: a data URL, or a long text of ASCII without a space."""
    beginning = text[:_BINARY_CHARACTERS]
    return text.startswith("data:") or (
        len(text) >= _BINARY_CHARACTERS and beginning.isascii() and not any(map(str.isspace, beginning))
    )


def _text(texts: Iterator[str], max_bytes: int) -> str:
    """Return these texts, up to a number of bytes."""
    said: list[str] = []
    left = max_bytes - 1  # a line break separates it from the next part
    for text in texts:
        encoded = without_surrogates(text[:left]).replace("\0", " ").encode()[:left]
        left -= len(encoded) + 1
        said.append(encoded.decode(errors="ignore"))
        if left <= 0:
            break
    return "\n".join(said)
