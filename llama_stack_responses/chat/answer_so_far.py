"""What the readers of the parts of one answer share."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from .call_fragments import CallFragments
from .pieces import sliced
from .split_surrogates import SurrogateJoiner


class AnswerSoFar:
    """An answer while it is read.

    Attributes:
        characters: number of characters read so far, including those that are hidden from the client.
        joiner: joins the surrogate pairs of all texts.
        spoken: whether there is text, or a refusal.
        calls: the calls; None before the first one.
    """

    __slots__ = ("calls", "characters", "joiner", "spoken")

    def __init__(self) -> None:
        self.characters = 0
        self.joiner = SurrogateJoiner()
        self.spoken = False
        self.calls: CallFragments | None = None

    @property
    def has_begun(self) -> bool:
        """Whether there is more than reasoning."""
        return self.spoken or self.calls is not None

    def joined(self, key: Hashable, value: str) -> Iterator[str]:
        """Yield a text of the stream `key` in pieces, and count it."""
        for piece in sliced(value):
            self.characters += len(piece)
            if joined := self.joiner.feed(key, piece):
                yield joined
