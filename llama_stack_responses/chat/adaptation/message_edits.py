"""Messages as values: their texts, and messages that are made of others without changing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, Final

from ...core.types import Json

MEDIA: Final = {
    "image_url": "(an image that this model cannot see)",
    "input_audio": "(audio that this model cannot hear)",
    "file": "(a file that this model cannot read)",
}
"""What a model reads in place of a part, by the type of the part."""

INSTRUCTING: Final = ("system", "developer")


class WithReasoning(dict[str, Any]):
    """An assistant's message of an earlier turn, whose reasoning is sent only to model servers that demand it.

    Attributes:
        reasoning: returns the text of the reasoning.
    """

    __slots__ = ("reasoning",)

    def __init__(self, message: Json, reasoning: Callable[[], str]) -> None:
        super().__init__(message)
        self.reasoning = reasoning


def with_messages(chat: Json, messages: Sequence[Json]) -> Json:
    """Return a chat request with these messages; the same one if they are those that it has."""
    return chat if are_same(messages, chat["messages"]) else chat | {"messages": list(messages)}


def are_same(new: Sequence[Any], old: Sequence[Any]) -> bool:
    """Return whether both have the same objects, so that nothing was changed."""
    return len(new) == len(old) and all(map(is_, new, old))


def with_instructions(chat: Json, text: str) -> Json:
    """Return a chat request whose first system message also has this text."""
    first, *rest = chat["messages"] or [{}]
    if first.get("role") in INSTRUCTING and isinstance(first["content"], str):
        messages = [first | {"content": f"{first['content']}\n\n{text}"}, *rest]
    else:
        messages = [{"role": "system", "content": text}, *chat["messages"]]
    return chat | {"messages": messages}


def each_message(chat: Json, change: Callable[[Json], Json]) -> Json:
    """Return a chat request with each message changed; the same one if `change` returns all as they are."""
    return with_messages(chat, [change(message) for message in chat["messages"]])


def walking(change: Callable[[Json], Json]) -> Callable[[Json, Any], Json]:
    """Return `apply` of a kind that changes each message by itself."""
    return lambda chat, _: each_message(chat, change)


def parts_of(content: Any) -> list[Json]:
    """Return the content of a message as parts."""
    if isinstance(content, list):
        return [part for part in content if isinstance(part, dict)]
    return [{"type": "text", "text": content}] if content else []


def text_of(content: Any) -> str:
    """Return the content of a message as text, with a note in place of each part that is none."""
    if isinstance(content, str):
        return content
    texts = (part["text"] if isinstance(part.get("text"), str) else _note(part) for part in parts_of(content))
    return "\n\n".join(filter(None, texts))


def _note(part: Json) -> str:
    return MEDIA.get(str(part.get("type")), "")


def joined(one: Any, other: Any) -> Any:
    """Return the contents of two messages as one: text, if both are."""
    if isinstance(one, list) or isinstance(other, list):
        return [*parts_of(one), *parts_of(other)]
    return "\n\n".join(filter(None, (one, other)))
