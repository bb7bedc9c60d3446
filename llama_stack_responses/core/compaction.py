"""A conversation that goes on from a summary of what came before."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

import orjson

from .errors import bad_request
from .items import COMPACTION
from .truncation import PINNED

Json = dict[str, Any]

_INSTRUCTING: Final = ("system", "developer")


def check_not_empty(items: Sequence[Json]) -> None:
    """A 400 where there is nothing to compact."""
    if not items:
        raise bad_request("There is nothing to compact: the conversation is empty.", "input", "invalid_value")


@dataclass(frozen=True, slots=True)
class Summary:
    """What a compaction item holds.

    Attributes:
        text: what the model wrote of the conversation up to there.
        message: the text of the user's message that was still being answered; None where the conversation was at rest.
    """

    text: str
    message: str | None = None

    def encode(self) -> bytes:
        """The summary, to be sealed."""
        return zlib.compress(orjson.dumps(astuple(self)), 1)

    @staticmethod
    def decode(data: bytes) -> Summary:
        """The inverse of `encode`."""
        return Summary(*orjson.loads(zlib.decompress(data)))


def continued(items: Sequence[Json], read: Callable[[Json], Summary | None]) -> list[Json]:
    """What a model is to see of a conversation: a summary in the place of all that came before it.

    The instructions with which the conversation began stay.

    Args:
        read: what a compaction item holds; None if it cannot be read, and stands for nothing.
    """
    for number in range(len(items) - 1, -1, -1):
        if items[number]["type"] == COMPACTION and (summary := read(items[number])):
            rest = list(items[number + 1 :])
            return [*_instructions(items), _told(summary, rest), *rest]
    return list(items)


def has_news(items: Sequence[Json], read: Callable[[Json], Summary | None]) -> bool:
    """Whether there is anything to summarise, behind the last summary and beside instructions."""
    for item in reversed(items):
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


def open_message(items: Sequence[Json], read: Callable[[Json], Summary | None]) -> str | None:
    """The text of the user's message that is still being answered; None if the last word was the assistant's."""
    if items and items[-1].get("role") == "assistant":
        return None
    for item in reversed(items):
        if item.get("role") == "user":
            return "\n".join(part["text"] for part in item["content"] if "text" in part) or None
        if item["type"] == COMPACTION and (summary := read(item)):
            return summary.message
    return None


def _instructions(items: Sequence[Json]) -> list[Json]:
    """The messages of developers and the system with which a conversation begins."""
    end = next((number for number, item in enumerate(items) if item.get("role") not in _INSTRUCTING), len(items))
    return list(items[:end])


def _told(summary: Summary, rest: Sequence[Json]) -> Json:
    """The summary as a message to the model; the user's message is part of it unless it follows."""
    text = f"The conversation so far has been summarised:\n\n<summary>\n{summary.text}\n</summary>"
    if summary.message and not (rest and rest[0].get("role") == "user"):
        text += f"\n\nThe user's latest message was:\n\n<message>\n{summary.message}\n</message>"
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content, PINNED: True}
