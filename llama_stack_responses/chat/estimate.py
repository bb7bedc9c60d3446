"""How many tokens a chat request has, guessed without its model's tokenizer."""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]

_BYTES_A_TOKEN: Final = 4
"""Of UTF-8. English prose has 4 to 5, code and JSON 3, Chinese 3 to 4: with those the guess is a quarter off at most;
with rare scripts, long numbers and base64 it can be half of what it should be."""

_OF_A_MESSAGE: Final = 4
"""Tokens that a chat template puts around a message."""

_OF_MEDIA: Final = 1_000
"""Tokens of an image, a file or a sound, whatever its size: what it comes to is the model server's affair."""

_MEDIA: Final = frozenset({"image_url", "file", "input_audio"})


def estimated_tokens(chat: Json) -> int:
    """The tokens of a chat request's messages, tools and answer format, about."""
    messages = chat["messages"]
    size = _size(messages) + _size(chat.get("tools")) + _size(chat.get("response_format"))
    return size // _BYTES_A_TOKEN + _OF_A_MESSAGE * len(messages)


def _size(value: Any) -> int:
    """The bytes of all text in a value."""
    match value:
        case str():
            return len(value) if value.isascii() else len(value.encode(errors="replace"))
        case dict():
            return sum(
                _OF_MEDIA * _BYTES_A_TOKEN if name in _MEDIA else len(name) + _size(member)
                for name, member in value.items()
            )
        case list():
            return sum(map(_size, value))
    return 0
