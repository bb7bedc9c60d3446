"""A conversation that goes on from a summary of what came before."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from .errors import bad_request
from .schema.items import COMPACTION
from .truncation import PINNED

Json = dict[str, Any]

_INSTRUCTING: Final = ("system", "developer")

_MEDIA_BYTES: Final = 1_000_000
"""What is larger than this is so by images, which are hardly smaller when they are compressed, and take long."""


def check_not_empty(items: Sequence[Json]) -> None:
    """A 400 where there is nothing to compact."""
    if not items:
        raise bad_request("There is nothing to compact: the conversation is empty.", "input", "invalid_value")


@dataclass(frozen=True, slots=True)
class Summary:
    """What a compaction item holds.

    Attributes:
        text: what the model wrote of the conversation up to there.
        message: the content of the user's message that was still being answered, as the client sent it; None where the
            conversation was at rest.
    """

    text: str
    message: list[Json] | None = None

    def encode(self) -> bytes:
        """The summary, to be sealed."""
        data = orjson.dumps([self.text, self.message])
        return zlib.compress(data, 1 if len(data) < _MEDIA_BYTES else 0)

    @staticmethod
    def decode(data: bytes) -> Summary:
        """The inverse of `encode`."""
        text, message = orjson.loads(zlib.decompress(data))
        # There are seals that hold the message's text alone.
        return Summary(text, [_text(message)] if isinstance(message, str) else message)


def as_message(summary: Summary) -> Json:
    """The summary as a message to the model, and behind it the parts of the user's message, if there is one."""
    text = f"The conversation so far has been summarised:\n\n<summary>\n{summary.text}\n</summary>"
    message = summary.message or []
    if message:
        text += "\n\nThe user's latest message was:"
    return {"type": "message", "role": "user", "content": [_text(text), *message], PINNED: True}


def continued(items: Sequence[Json], read: Callable[[Json], Summary | None]) -> list[Json]:
    """What a model is to see of a conversation: a summary in the place of all that came before it.

    The instructions with which the conversation began stay.

    Args:
        read: what a compaction item holds; None if it cannot be read, and stands for nothing.
    """
    for number in range(len(items) - 1, -1, -1):
        if items[number]["type"] == COMPACTION and (summary := read(items[number])):
            rest = list(items[number + 1 :])
            return [*_instructions(items), *_telling(summary, rest), *rest]
    return list(items)


def has_news(items: Sequence[Json], read: Callable[[Json], Summary | None]) -> bool:
    """Whether there is anything to summarise, behind the last summary and beside instructions."""
    for item in reversed(items):
        if PINNED in item:
            return False
        if item["type"] == COMPACTION:
            if read(item):
                return False
        elif item.get("role") not in _INSTRUCTING:
            return True
    return False


def before_question(items: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """The conversation, and the user's messages at its end, which nobody has answered."""
    end = next((number for number in range(len(items), 0, -1) if items[number - 1].get("role") != "user"), 0)
    return list(items[:end]), list(items[end:])


def open_message(
    items: Sequence[Json], sent: Sequence[Json], read: Callable[[Json], Summary | None]
) -> list[Json] | None:
    """The content of the user's message that is still being answered; None if the last word was the assistant's.

    Args:
        items: the conversation.
        sent: its beginning, with all that the user said, as it was sent.
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
    """The content of the user's newest message as a conversation shows it to the model, alone or behind a summary."""
    newest = next(item for item in reversed(items) if item.get("role") == "user")
    content: list[Json] = newest["content"]
    return content[1:] if PINNED in newest else content


def _instructions(items: Sequence[Json]) -> list[Json]:
    """The messages of developers and the system with which a conversation begins."""
    end = next((number for number, item in enumerate(items) if item.get("role") not in _INSTRUCTING), len(items))
    return list(items[:end])


def _telling(summary: Summary, rest: Sequence[Json]) -> list[Json]:
    """The message that tells the summary, unless it is there; the user's message is part of it unless that follows."""
    if any(PINNED in item for item in rest):
        return []
    follows = bool(rest) and rest[0].get("role") == "user"
    return [as_message(replace(summary, message=None) if follows else summary)]


def _text(text: str) -> Json:
    return {"type": "input_text", "text": text}
