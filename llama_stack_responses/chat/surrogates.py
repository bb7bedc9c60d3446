"""Mends text whose characters were cut in two.

JSON can carry half of a character beyond the basic plane, and a server that cuts text by UTF-16 units sends one. No
store and no model server takes such a half, so it is held until its other half comes, or replaced.
"""

from __future__ import annotations

from collections.abc import Hashable


class SurrogateMender:
    """Mends several streams of text at once, each known by a key."""

    def __init__(self) -> None:
        self._halves: dict[Hashable, str] = {}

    def feed(self, key: Hashable, text: str) -> str:
        """The next piece of the stream `key`, as far as it is whole."""
        if self._halves:
            text = self._halves.pop(key, "") + text
        if text.isascii():
            return text
        if "\ud800" <= text[-1] <= "\udbff":
            self._halves[key] = text[-1]
            text = text[:-1]
        try:
            text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text
