"""Secrets in place of their placeholders, and placeholders in place of secrets."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Final

_BASIC: Final = re.compile(r"(basic +)([A-Za-z0-9+/=]+) *", re.IGNORECASE)
_HIDDEN_CHARACTERS: Final = 8
"""Minimum length of a secret that is hidden in what comes back. A shorter one is part of too many other texts."""


class Placeholders:
    """The placeholders `$NAME` and `${NAME}` of the secrets of one host.

    Args:
        values: the values of its secrets, by name.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        names = "|".join(sorted(values, key=len, reverse=True))
        self._form = re.compile(rf"\$(?:\{{({names})\}}|({names})(?![A-Za-z0-9_]))") if values else None

    def are_in(self, header: str) -> bool:
        """Return whether the value of a header has a placeholder, also within the credentials of Basic."""
        return self.replaced(header) != header

    def replaced(self, header: str) -> str:
        """Return the value of a header with secrets in place of placeholders, also within the credentials of Basic."""
        if self._form is None:
            return header
        if basic := _BASIC.fullmatch(header):
            try:
                credentials = b64decode(basic[2], validate=True).decode("latin-1")
            except binascii.Error:
                return header
            return basic[1] + b64encode(self._in_text(credentials).encode("latin-1")).decode()
        return self._in_text(header)

    def _in_text(self, text: str) -> str:
        assert self._form
        return self._form.sub(lambda found: self._values[found[1] or found[2]], text)


class Mask:
    """Hides secrets in a stream of bytes, with asterisks of the same length: the size of the stream stays.

    Args:
        values: the secrets.
    """

    def __init__(self, values: Iterable[str]) -> None:
        self._values = [each.encode() for each in _long(values)]
        self._form = re.compile(b"|".join(map(re.escape, self._values))) if self._values else None
        self._rest = b""

    def whole(self, data: bytes) -> bytes:
        """Return data that is complete, without secrets."""
        return self._form.sub(lambda found: b"*" * len(found[0]), data) if self._form else data

    def next(self, data: bytes) -> bytes:
        """Return what follows in the stream, without secrets. An end that may begin a secret is held back."""
        data = self.whole(self._rest + data)
        held = max((_overlap(data, each) for each in self._values), default=0)
        self._rest = data[len(data) - held :]
        return data[: len(data) - held]

    def end(self) -> bytes:
        """Return what was held back."""
        rest, self._rest = self._rest, b""
        return rest


def hidden(text: str, secrets: Mapping[str, str]) -> str:
    """Return a text with placeholders in place of secrets, given the secrets' placeholders by their values."""
    for value in sorted(_long(secrets), key=len, reverse=True):
        text = text.replace(value, secrets[value])
    return text


def _long(values: Iterable[str]) -> list[str]:
    return sorted((each for each in values if len(each) >= _HIDDEN_CHARACTERS), key=len, reverse=True)


def _overlap(data: bytes, value: bytes) -> int:
    """Return how many bytes at the end of `data` are the beginning of `value`, without being all of it."""
    at = len(data) - min(len(data), len(value) - 1)
    while (at := data.find(value[:1], at)) >= 0:
        if value.startswith(data[at:]):
            return len(data) - at
        at += 1
    return 0
