"""Regular expressions that are compiled when they are first used."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any


class LatePattern:
    """A regular expression for what happens seldom, such as the errors of model servers.

    Compiling a long one takes a millisecond, and there are many: each start would spend their time and memory.

    Args:
        pattern: the expression.
        flags: its flags.

    Attributes:
        pattern: the expression.
    """

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self.pattern = pattern
        self._flags = flags

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern, self._flags)

    def search(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        """Return the first match between two positions, as that of `re.Pattern`."""
        return self._compiled.search(text, start, end)

    def match(self, text: str, start: int = 0) -> re.Match[str] | None:
        """Return the match at a position, as that of `re.Pattern`."""
        return self._compiled.match(text, start)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        """Return the match of the whole text, as that of `re.Pattern`."""
        return self._compiled.fullmatch(text)

    def findall(self, text: str) -> list[Any]:
        """Return the texts of all matches, as that of `re.Pattern`."""
        return self._compiled.findall(text)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """Return all matches, as that of `re.Pattern`."""
        return self._compiled.finditer(text)

    def sub(self, replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
        """Return the text with all matches replaced, as that of `re.Pattern`."""
        return self._compiled.sub(replacement, text)

    def split(self, text: str, maxsplit: int = 0) -> list[str | Any]:
        """Return the texts between matches, as that of `re.Pattern`."""
        return self._compiled.split(text, maxsplit)
