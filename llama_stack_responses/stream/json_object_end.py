"""Detect the end of a JSON object that arrives in fragments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from typing import Final

_MARK: Final = re.compile(r'["\\{}\[\]]')
_SLICE_CHARACTERS: Final = 4_096
"""Characters after which one call stops, except at the end of a fragment: earlier fragments may hold megabytes."""


class JsonObjectEnd:
    """Counts the brackets of a JSON object outside its strings; each fragment is read once, some in each call.

    Attributes:
        in_string: whether what was read ends within a string.
    """

    __slots__ = ("_depth", "_escaped", "_read", "_whole", "in_string")

    def __init__(self) -> None:
        self._read = 0
        self._depth = 0
        self.in_string = False
        self._escaped = False
        self._whole = False

    def copy(self) -> JsonObjectEnd:
        """Return a copy, which can read further while this one stays as it is."""
        return copy(self)

    def reached(self, fragments: Sequence[str]) -> bool:
        """Return whether these fragments reach the object's end; each call passes the earlier fragments again.

        While there is more to read than one call reads, the result is false.
        """
        left = _SLICE_CHARACTERS
        while self._read < len(fragments) and left > 0 and not self._whole:
            self.read(fragments[self._read])
            left -= 1 + len(fragments[self._read])
            self._read += 1
        return self._whole

    def read(self, fragment: str) -> int | None:
        """Read the next fragment, up to the object's end; return the number of its characters up to there.

        It is None if the fragment does not reach the end.
        """
        if not fragment:
            return None
        escaped_at = 0 if self._escaped else -1
        for mark in _MARK.finditer(fragment):
            if mark.start() == escaped_at:
                continue
            if self.in_string:
                if mark[0] == "\\":
                    escaped_at = mark.end()
                self.in_string = mark[0] != '"'
            elif mark[0] == '"':
                self.in_string = True
            elif self._ends(mark[0]):
                return mark.end()
        self._escaped = escaped_at == len(fragment)
        return None

    def _ends(self, mark: str) -> bool:
        """Count a mark outside a string; return whether it is the object's last one."""
        if mark in "{[":
            self._depth += 1
        elif mark in "}]":
            self._depth -= 1
            self._whole = self._depth == 0
        return self._whole
