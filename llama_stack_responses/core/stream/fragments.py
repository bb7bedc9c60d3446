"""A text that arrives in fragments, which a thread can join before it is needed."""

from __future__ import annotations

from itertools import batched, islice
from typing import Final

LARGE_CHARACTERS: Final = 65_536
"""Characters of a text from which joining it is work for a thread."""

_FRAGMENTS_PER_JOIN: Final = 1_024
"""Fragments that are joined at once."""

FRAGMENTS_PER_GROUP: Final = 32
"""Fragments that become one string, a power of two: each string takes more memory than the characters of a token."""
_GROUPED_CHARACTERS: Final = 1_024
"""Maximum characters of a fragment that `append` copies into a group."""


class Fragments:
    """The fragments of a text.

    Attributes:
        pieces: the fragments. Others may append to them, which groups none.
    """

    __slots__ = ("_counted", "_grouped", "_joined", "_length", "_text", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._grouped = 0
        self._counted = 0
        self._length = 0
        self._joined = 0
        self._text = ""

    def append(self, text: str) -> None:
        """Append a fragment, and make the last ones a single piece if they are small and enough for a group."""
        self.pieces.append(text)
        if len(text) > _GROUPED_CHARACTERS:
            self.keep_pieces()
        elif len(self.pieces) - self._grouped >= FRAGMENTS_PER_GROUP:
            self.group()

    def keep_pieces(self) -> None:
        """Leave the pieces so far as they are."""
        self._grouped = len(self.pieces)

    def group(self) -> None:
        """Make the last fragments a single piece."""
        pieces, begin = self.pieces, max(self._grouped, self._joined)
        group = "".join(pieces[begin:])
        if self._counted == begin:
            self._length += len(group)
        else:
            self.length()
        pieces[begin:] = (group,)
        self._counted = self._grouped = begin + 1

    def length(self) -> int:
        """Return the number of characters; each fragment is counted once, however often this is called."""
        self._length += sum(map(len, self.pieces[self._counted :]))
        self._counted = len(self.pieces)
        return self._length

    def is_unprepared(self) -> bool:
        """Return whether joining the fragments takes long."""
        return len(self.pieces) - self._joined > 1 and self.length() >= LARGE_CHARACTERS

    def lags(self) -> bool:
        """Return whether many fragments are not joined yet."""
        return len(self.pieces) - self._joined > _FRAGMENTS_PER_JOIN

    def join(self) -> None:
        """Join the fragments in steps, so that a thread with many of them lets others run.

        A response that is cancelled meanwhile closes without waiting for the thread, so `text` stays whole throughout.
        """
        text, begin, end = self._text, self._joined, len(self.pieces)
        self._text, self._joined = "", 0
        for some in batched(islice(self.pieces, begin, end), _FRAGMENTS_PER_JOIN):
            text += "".join(some)  # it grows in place
        self._text, self._joined = text, end

    def text(self) -> str:
        """Return the text so far."""
        rest = self.pieces[self._joined :]
        return "".join((self._text, *rest)) if rest else self._text
