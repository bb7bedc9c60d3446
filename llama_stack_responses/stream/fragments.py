"""A text that arrives in fragments, which a thread can join before it is needed."""

from __future__ import annotations

from itertools import batched, islice
from typing import Final

LARGE_CHARACTERS: Final = 65_536
"""Characters of a text from which joining it is work for a thread."""

_FRAGMENTS_PER_JOIN: Final = 1_024
"""Fragments that are joined at once."""

FRAGMENTS_PER_GROUP: Final = 8
"""Fragments that are added to a group, a power of two: each string takes more memory than the characters of a token."""
_GROUPED_CHARACTERS: Final = 1_024
"""Characters from which no more are added to a group, and maximum characters of a fragment that `append` adds to it."""


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
        """Append a fragment, and add the last ones to a group if they are small and enough for that."""
        self.pieces.append(text)
        if len(text) > _GROUPED_CHARACTERS:
            self.keep_pieces()
        elif len(self.pieces) - self._grouped >= FRAGMENTS_PER_GROUP:
            self.group()

    def keep_pieces(self) -> None:
        """Leave the pieces so far as they are."""
        self._grouped = len(self.pieces)

    def group(self) -> None:
        """Make the last fragments a single piece, together with the group before them if that is small."""
        pieces, begin = self.pieces, max(self._grouped, self._joined)
        if self._counted > begin:
            self.length()
            self._counted = begin + 1
        group = "".join(pieces[begin:])
        pieces[begin:] = (group,)
        self._grouped = begin + (len(group) >= _GROUPED_CHARACTERS)

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
