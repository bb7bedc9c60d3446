"""Repair text whose surrogate pairs were cut in two.

JSON can carry one half of a surrogate pair, and a server that cuts text by UTF-16 units sends one. Stores and model
servers refuse it, so a half is held back until the other half arrives, or replaced.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Final

_UNPAIRED: Final = re.compile("[\ud800-\udbff]+(?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]+")
"""Runs of halves without their other half. A codec's error handler would be called for each of them."""


class SurrogateMender:
    """Repairs several streams of text at once, each identified by a key."""

    def __init__(self) -> None:
        self._halves: dict[Hashable, str] = {}

    def feed(self, key: Hashable, text: str) -> str:
        """Return the next piece of the stream `key` without an incomplete pair at its end."""
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
            return repaired(text)
        return text


def repaired(text: str) -> str:
    """Return a text with its pairs joined, and its halves replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = _UNPAIRED.sub(lambda run: "\ufffd" * len(run[0]), text)
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    return text
