"""Detect the end of a JSON object that arrives in fragments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_MARK: Final = re.compile(r'["\\{}\[\]]')
_SLICE_CHARACTERS: Final = 4_096
"""Characters after which one call stops, except at the end of a fragment: earlier fragments may hold megabytes."""


class JsonObjectEnd:
    """Counts the brackets of a JSON object outside its strings; each fragment is read once, some in each call."""

    __slots__ = ("_depth", "_escaped", "_in_string", "_read", "_whole")

    def __init__(self) -> None:
        self._read = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._whole = False

    def reached(self, fragments: Sequence[str]) -> bool:
        """Return whether these fragments reach the object's end; each call passes the earlier fragments again.

        While there is more to read than one call reads, the result is false.
        """
        left = _SLICE_CHARACTERS
        while self._read < len(fragments) and left > 0 and not self._whole:
            self._take(fragments[self._read])
            left -= 1 + len(fragments[self._read])
            self._read += 1
        return self._whole

    def _take(self, fragment: str) -> None:
        escaped_at = 0 if self._escaped else -1
        self._escaped = False
        for mark in _MARK.finditer(fragment):
            if mark.start() == escaped_at:
                continue
            if self._in_string:
                if mark[0] == "\\":
                    escaped_at = mark.end()
                self._in_string = mark[0] != '"'
            else:
                self._count(mark[0])
        self._escaped = escaped_at == len(fragment) > 0

    def _count(self, mark: str) -> None:
        if mark == '"':
            self._in_string = True
        elif mark in "{[":
            self._depth += 1
        elif mark in "}]":
            self._depth -= 1
            self._whole = self._depth == 0
