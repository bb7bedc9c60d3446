"""Replace the beginning of a conversation by a summary."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import orjson

from ..core import json_decoding
from ..core.errors import bad_request
from ..core.json_blocks import blocks
from ..core.json_values import is_large
from ..core.types import Json
from .kinds.compaction import COMPACTION
from .truncation import INSTRUCTING, PINNED, opening_instructions

_SLICE_BYTES: Final = 65_536
"""Bytes that are decoded in one call."""

_MEDIA_BYTES: Final = 1_000_000
"""Larger data consists mostly of images, which take long to compress and hardly shrink."""


def check_not_empty(items: Sequence[Json]) -> None:
    """Raise a 400 if there is nothing to compact."""
    if not items:
        raise bad_request("There is nothing to compact: the conversation is empty.", "input", "invalid_value")


@dataclass(frozen=True, slots=True)
class Summary:
    """The content of a compaction item.

    Attributes:
        text: the model's summary of the conversation so far.
        message: the content of the user's message that was not yet answered, as the client sent it; None if there was
            none.
    """

    text: str
    message: list[Json] | None = None

    def encode(self) -> bytes:
        """Return the encoded summary, to be sealed."""
        value = [self.text, self.message]
        packer, packed = zlib.compressobj(0 if is_large(value, _MEDIA_BYTES) else 1), bytearray()
        for block in blocks(value):
            packed += packer.compress(block)
        return bytes(packed + packer.flush())

    @staticmethod
    def decode(data: bytes) -> Summary:
        """Decode the result of `encode`."""
        return Summary.from_json(zlib.decompress(data))

    @staticmethod
    def from_json(data: bytes | bytearray) -> Summary:
        """Return the summary that decompressed JSON holds."""
        return Summary(*(orjson.loads(data) if len(data) <= _SLICE_BYTES else json_decoding.loads(data)))


def as_message(summary: Summary) -> Json:
    """Return the summary as a message to the model, followed by the parts of the user's message, if there is one."""
    text = f"The conversation so far has been summarised:\n\n<summary>\n{summary.text}\n</summary>"
    message = summary.message or []
    if message:
        text += "\n\nThe user's latest message was:"
    return {"type": "message", "role": "user", "content": [_text(text), *message], PINNED: True}


def continued(items: Sequence[Json], read: Callable[[Json], Summary | None]) -> list[Json]:
    """Return the items of a conversation for a model: the newest summary replaces everything before it.

    The instructions with which the conversation began are kept.

    Args:
        read: returns the content of a compaction item; None if it is unreadable, and then ignored.
    """
    for number in range(len(items) - 1, -1, -1):
        if items[number]["type"] == COMPACTION and (summary := read(items[number])):
            rest = list(items[number + 1 :])
            return [*opening_instructions(items), *_with_summary(summary, rest), *rest]
    return list(items)


def has_new_items(items: Sequence[Json], read: Callable[[Json], Summary | None]) -> bool:
    """Return whether anything but instructions follows the last summary."""
    for item in reversed(items):
        if PINNED in item:
            return False
        if item["type"] == COMPACTION:
            if read(item):
                return False
        elif item.get("role") not in INSTRUCTING:
            return True
    return False


def before_question(items: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """Split off the user's messages at the end of the conversation, which are not yet answered."""
    end = next((number for number in range(len(items), 0, -1) if items[number - 1].get("role") != "user"), 0)
    return list(items[:end]), list(items[end:])


def open_message(
    items: Sequence[Json], sent: Sequence[Json], read: Callable[[Json], Summary | None]
) -> list[Json] | None:
    """Return the content of the user's message that is not yet answered; None if the assistant spoke last.

    Args:
        items: the conversation.
        sent: its beginning, with the user's messages as they were sent.
    """
    if items and items[-1].get("role") == "assistant":
        return None
    for item in reversed(sent):
        if item.get("role") == "user":
            content: list[Json] = item["content"]
            return content
        if item["type"] == COMPACTION and (summary := read(item)):
            return summary.message
    return None


def shown_message(items: Sequence[Json]) -> list[Json]:
    """Return the content of the user's newest message as the model sees it, without the summary in front of it."""
    newest = next(item for item in reversed(items) if item.get("role") == "user")
    content: list[Json] = newest["content"]
    return content[1:] if PINNED in newest else content


def _with_summary(summary: Summary, rest: Sequence[Json]) -> list[Json]:
    """Return the message with the summary, unless it is already there, without the user's message if that follows."""
    if any(PINNED in item for item in rest):
        return []
    follows = bool(rest) and rest[0].get("role") == "user"
    return [as_message(replace(summary, message=None) if follows else summary)]


def _text(text: str) -> Json:
    return {"type": "input_text", "text": text}
