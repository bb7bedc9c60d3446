"""Repair text whose surrogate pairs were cut in two.

JSON can carry one half of a surrogate pair, and a server that cuts text by UTF-16 units sends one. Stores and model
servers refuse it, so a half is held back until the other half arrives, or replaced.
"""

from __future__ import annotations

from collections.abc import Hashable

from ..core.surrogates import without_surrogates


class SurrogateJoiner:
    """Joins cut surrogate pairs in several streams of text at once, each identified by a key."""

    __slots__ = ("_halves",)

    def __init__(self) -> None:
        self._halves: dict[Hashable, str] = {}

    @property
    def is_buffering(self) -> bool:
        """Whether a half is held back."""
        return bool(self._halves)

    def feed(self, key: Hashable, text: str) -> str:
        """Return the next piece of the stream `key` without an incomplete pair at its end."""
        if self._halves:
            text = self._halves.pop(key, "") + text
        if text.isascii():
            return text
        if "\ud800" <= text[-1] <= "\udbff":
            self._halves[key] = text[-1]
            text = text[:-1]
        return text if is_whole(text) else without_surrogates(text)


def is_whole(text: str) -> bool:
    """Return whether a text has no halves of pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
