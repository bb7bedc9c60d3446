"""One text of a stream, from chunks that may repeat what was said.

Chunks are the next characters of the text. Some servers send all characters so far with each chunk, or the whole text
once more at the end. Characters that were passed on cannot be taken back. So a chunk that begins with the whole text so
far is kept until the next one, or the end, decides. A text may repeat itself too, so without evidence nothing is cut.
Only the beginning of the text is compared, and its length: nothing else of it is kept. A text that comes once more may
lack the whitespace around it.

Messages in place of deltas have all characters so far by their name. So one that begins with the text so far is taken
for that, however short it is, unless one behind it begins otherwise: then they were pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..core.errors import ApiError
from .pieces import ContentPart

BEGINNING_CHARACTERS: Final = 32
"""Characters at the beginning of a text with which chunks are compared."""
_KEPT: Final = 8
"""Maximum chunks that are kept."""
_PIECES_CHARACTERS: Final = 4
"""Characters from which a text of several pieces that comes once more, in one chunk at the end, is a repetition."""
_STRIPPED_CHARACTERS: Final = 8
"""The same, if the whitespace around it differs."""
_GROWN_CHARACTERS: Final = 3
"""Characters from which a text of one chunk is repeated by a longer one at the end."""
_CHUNK_CHARACTERS: Final = 16
"""Characters from which a text of one chunk is repeated by an equal one at the end."""
_SPACE_CHARACTERS: Final = 8
"""Maximum characters of whitespace behind a text that it lacks when it comes once more."""
_PERIOD_CHARACTERS: Final = 1_024
"""Characters of a chunk in which a period is sought."""


class RepeatedText:
    """One text of a round, such as its content.

    Attributes:
        size: characters so far.
        of_messages: whether the chunks are whole messages in place of deltas.
    """

    __slots__ = ("_beginning", "_cumulative", "_held", "_pieces", "of_messages", "size")

    def __init__(self) -> None:
        self.size = 0
        self.of_messages = False
        self._beginning = ""
        self._pieces = 0
        self._cumulative = False
        self._held: tuple[ContentPart, ...] = ()

    @property
    def kept(self) -> int:
        """The number of chunks that are kept."""
        return len(self._held)

    @property
    def is_extendable(self) -> bool:
        """Whether chunks of at most `max_extension` characters may be passed on without `take`.

        They are counted with `extend`, and `begin` takes them while `is_begun` is false.
        """
        return self.size > 0 and not (self._cumulative or self._held)

    @property
    def max_extension(self) -> int:
        """Characters of the longest chunk that cannot be the text once more."""
        return max_extension(self.size)

    @property
    def is_begun(self) -> bool:
        """Whether the beginning with which chunks are compared is complete."""
        return len(self._beginning) == BEGINNING_CHARACTERS

    def begin(self, text: str) -> None:
        """Add characters to the beginning."""
        self._beginning += text[: BEGINNING_CHARACTERS - len(self._beginning)]

    def extend(self, size: int) -> None:
        """Count characters that were passed on without `take`."""
        self.size += size
        self._pieces += 1

    def add(self, text: str) -> None:
        """Add characters that were passed on without `take`."""
        if not self.is_begun:
            self.begin(text)
        self.extend(len(text))

    def take(self, chunk: ContentPart) -> Sequence[ContentPart]:
        """Take a chunk with text; return what is to be passed on.

        Raises:
            ApiError: a server that sends all characters so far has changed them.
        """
        if self.is_extendable and len(chunk.content) <= self.max_extension:
            self.add(chunk.content)
            return (chunk,)
        if self._cumulative:
            return self._grow(chunk)
        if self._held:
            return self._decide(chunk)
        if self.size and (self._repeats(chunk.content) or self._repeats_stripped(chunk.content)):
            self._held = (chunk,)
            return ()
        self.add(chunk.content)
        return (chunk,)

    def settle(self) -> Sequence[ContentPart]:
        """Return what is to be passed on of the chunks that were kept, now that the text ends."""
        if not self._held:
            return ()
        last = self._held[-1]
        repeats = self._repeats(last.content)
        if not (self._is_repetition(last.content) if repeats else self._repeats_stripped(last.content)):
            return self._release()
        self._held = ()
        return self._grow(last) if repeats else ()

    def is_all(self, text: str) -> bool:
        """Return whether another text has all characters so far, and none else; a short one does not tell."""
        return _PIECES_CHARACTERS <= len(text) == self.size and text.startswith(self._beginning)

    def may_have(self, text: str) -> bool:
        """Return whether another text can be a part of this one, or the whole; of a long one, only its size tells."""
        text, size = text.strip(), self.size + sum(len(each.content) for each in self._held)
        return text in self._beginning if size <= len(self._beginning) else len(text) <= size

    def _repeats(self, text: str) -> bool:
        """Return whether a chunk has all characters so far."""
        return len(text) >= self.size and text.startswith(self._beginning)

    def _repeats_stripped(self, text: str) -> bool:
        """Return whether a chunk is a text of several pieces without the whitespace around it."""
        text, beginning = text.strip(), self._beginning.lstrip()
        size = self.size - len(self._beginning) + len(beginning)
        # The last piece may be the whitespace with which a writer separates two equal texts.
        pieces = self._pieces - (len(text) < size)
        if pieces < 2 or len(text) < _STRIPPED_CHARACTERS or _is_periodic(text):
            return False
        if size <= len(beginning):
            return text == beginning.rstrip()
        return size - _SPACE_CHARACTERS <= len(text) <= size and text.startswith(beginning.rstrip())

    def _decide(self, chunk: ContentPart) -> Sequence[ContentPart]:
        """Take a chunk behind those that were kept."""
        before = self._held[-1].content
        continues = chunk.content.startswith(before)
        grows = self.size < len(before) < len(chunk.content)
        if continues and grows and (self.of_messages or not _is_periodic(before)):
            self._held, self._cumulative = (), True
            return self._grow(chunk)
        if continues and len(self._held) < _KEPT:
            self._held += (chunk,)
            return ()
        return [*self._release(), *self.take(chunk)]

    def _grow(self, chunk: ContentPart) -> Sequence[ContentPart]:
        """Take a chunk with all characters so far."""
        text = chunk.content
        if not self._repeats(text):
            raise ApiError(
                502,
                "The model server sent the whole text so far with each chunk, and then another text. Set 'stream: "
                "never' in the model's profile, with which the model server sends the text once.",
            )
        rest = text[self.size :]
        self.add(rest)
        return (ContentPart(rest, None),) if rest else ()

    def _is_repetition(self, text: str) -> bool:
        """Return whether a chunk with all characters so far is the whole text, since nothing follows it."""
        if self.of_messages:
            return True
        before = text[: self.size]
        if _is_periodic(before):
            return False
        if self._pieces > 1:
            return self.size >= _PIECES_CHARACTERS
        grows = len(text) > self.size
        if before[0].isspace() or before[-1].isspace():
            return grows and self.size >= BEGINNING_CHARACTERS
        # A writer puts a separator between two equal texts.
        return self.size >= (_GROWN_CHARACTERS if grows else _CHUNK_CHARACTERS)

    def _release(self) -> Sequence[ContentPart]:
        """Return the chunks that were kept: they are the next characters."""
        held, self._held = self._held, ()
        for chunk in held:
            self.add(chunk.content)
        return held


def max_extension(size: int) -> int:
    """Return the characters of the longest chunk that cannot be a text of this size once more."""
    return max(0, size - 1 - _SPACE_CHARACTERS)


def _is_periodic(text: str) -> bool:
    """Return whether a text repeats a part of it, so that it may go on to do so."""
    text = text[:_PERIOD_CHARACTERS]
    return len(text) < 2 or text in (text + text)[1:-1]
