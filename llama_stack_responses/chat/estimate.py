"""Estimate the tokens of a chat request whose model server cannot count them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from ..core.types import Json
from .tokenizer import Tokenizer

_BYTES_PER_TOKEN: Final = 4
"""UTF-8 bytes per token. English prose has 4 to 5, code and JSON 3, Chinese 3 to 4: with these the estimate is at most
a quarter off. For rare scripts, long numbers and base64 it can be half of the true number.
"""

_MESSAGE_TOKENS: Final = 4
"""Tokens that a chat template adds to a message."""

_MEDIA_TOKENS: Final = 1_000
"""Tokens of an image, a file or a sound of any size: their number depends on the model server."""

_SAMPLED_ITEMS: Final = 64

_MEDIA: Final = frozenset({"image_url", "file", "file_data", "input_audio"})


_READ: Final = ("messages", "tools", "response_format")


def estimated_tokens(chat: Json, tokenizer: Tokenizer | None = None) -> int:
    """Return the approximate tokens of a chat request's messages, tools and answer format.

    Args:
        tokenizer: counts the texts; field names, additions of a chat template and media are still estimated.
    """
    read, of_messages = [chat.get(name) for name in _READ], _MESSAGE_TOKENS * len(chat["messages"])
    if tokenizer is None:
        return tokens_of(estimated_bytes(read)) + of_messages
    texts: list[str] = []
    around = _gather(read, texts)
    return tokens_of(around) + sum(map(tokenizer, texts)) + of_messages


def estimated_tokens_of_items(items: Sequence[Any]) -> int:
    """Return the approximate tokens of a conversation, by some of its items, evenly spaced."""
    some = [*islice(items, 0, None, len(items) // _SAMPLED_ITEMS + 1)]
    return tokens_of(estimated_bytes(some) * len(items) // max(1, len(some)))


def estimated_bytes(value: Any) -> int:
    """Return the UTF-8 bytes of the texts and names in a JSON value; media count as their tokens do."""
    texts: list[str] = []
    around = _gather(value, texts)
    return around + sum(map(_size, texts))


def tokens_of(size: int) -> int:
    """Return the approximate tokens of so many bytes."""
    return size // _BYTES_PER_TOKEN


def _gather(value: Any, texts: list[str]) -> int:
    """Append all texts in a value to `texts`, and return the bytes of the rest."""
    match value:
        case str():
            texts.append(value)
        case dict():
            return sum(
                _MEDIA_TOKENS * _BYTES_PER_TOKEN if name in _MEDIA else len(name) + _gather(member, texts)
                for name, member in value.items()
            )
        case list():
            return sum(_gather(member, texts) for member in value)
    return 0


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
