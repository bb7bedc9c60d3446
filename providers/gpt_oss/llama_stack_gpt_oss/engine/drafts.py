"""Drafts: tokens that may come next in a sequence, which a step verifies together with the last one.

A step samples a token after each draft as after any other token, with the seed of its position, and drafts are accepted
as long as they are what was sampled. So drafts change how many steps an answer takes, and not its tokens.
"""

from array import array
from collections.abc import Sequence as Series
from dataclasses import dataclass, field
from typing import Protocol

from .sequence import Sequence

NGRAM = 3  # tokens that have to match
SLICE = 4096  # tokens that are indexed at a time: a long prompt must not delay a step
FIRST_PAUSE = 16  # tokens


class Drafter(Protocol):
    """Proposes drafts. Not thread-safe.

    waits: all started steps have to be read before it proposes.
    """

    waits: bool

    def propose(self, sequences: Series[Sequence]) -> list[list[int]]:
        """Return the drafts after the last token of each sequence, unread ones included."""

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Record how many of the sequence's drafts were accepted."""

    def forget(self, sequence: Sequence) -> None:
        """Free what is kept for a sequence that has ended."""


class NgramIndex:
    """Finds the last earlier occurrence of a sequence's last tokens.

    The table has the index of the token after each hash of NGRAM tokens. A later n-gram with the same hash replaces an
    earlier one, so the tokens are compared too.
    """

    def __init__(self) -> None:
        self._table = array("i")
        self._indexed = NGRAM

    def continuation(self, tokens: Series[int], count: int) -> list[int]:
        """Return the tokens that followed the last occurrence, repeated if it is near the end; [] without one."""
        if not self._extend(tokens):
            return []
        end = len(tokens)
        last = tuple(tokens[end - NGRAM :])
        index = self._table[hash(last) & len(self._table) - 1]
        if not index or tuple(tokens[index - NGRAM : index]) != last:
            return []
        period = end - index
        return [tokens[index + number % period] for number in range(count)]

    def _extend(self, tokens: Series[int]) -> bool:
        """Index up to SLICE more tokens; return whether all are that have a token after them."""
        if 2 * len(tokens) > len(self._table):
            self._table = array("i", bytes(4 << (4 * len(tokens)).bit_length()))
            self._indexed = NGRAM
        table, last = self._table, len(self._table) - 1
        end = min(len(tokens), self._indexed + SLICE)
        for index in range(self._indexed, end):
            table[hash((tokens[index - 3], tokens[index - 2], tokens[index - 1])) & last] = index
        self._indexed = max(self._indexed, end)
        return self._indexed >= len(tokens)


@dataclass(slots=True)
class DraftLength:
    """How many tokens to draft for a sequence: twice as many after success, half as many after failure.

    At less than one the sequence pauses, each time for twice as many tokens.
    """

    most: int
    length: int
    resume: int = 0  # tokens of the sequence from which it drafts
    pause: int = FIRST_PAUSE

    def allowed(self, sequence: Sequence) -> int:
        """Return the maximum for the next step. A draft for the last token of an answer would be of no use."""
        if len(sequence.tokens) < self.resume:
            return 0
        left = sequence.params.max_tokens - sequence.generated - sequence.unread - 1
        return min(self.length, left)

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        if 2 * accepted >= drafted:
            self.length = min(self.most, 2 * self.length)
            return
        self.length //= 2
        if not self.length:
            self.length, self.resume = 1, len(sequence.tokens) + self.pause
            self.pause *= 2


def before_stop(drafts: list[int], stop_ids: frozenset[int]) -> list[int]:
    """Return the drafts before the first one that ends its sequence."""
    return next((drafts[:index] for index, draft in enumerate(drafts) if draft in stop_ids), drafts)


@dataclass(slots=True)
class _Kept:
    """What is kept for a sequence."""

    length: DraftLength
    index: NgramIndex = field(default_factory=NgramIndex)


class NgramDrafter:
    """Proposes what followed the last tokens earlier in the same sequence: in the prompt or in the answer."""

    waits = False

    def __init__(self, most: int) -> None:
        """Create a drafter of at most `most` tokens for a step."""
        self._most = most
        self._kept: dict[Sequence, _Kept] = {}

    def propose(self, sequences: Series[Sequence]) -> list[list[int]]:
        """Unread tokens are predicted too, so a step need not wait for them."""
        return [self._drafts(sequence) for sequence in sequences]

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        self._kept[sequence].length.verified(sequence, drafted, accepted)

    def forget(self, sequence: Sequence) -> None:
        self._kept.pop(sequence, None)

    def _drafts(self, sequence: Sequence) -> list[int]:
        kept = self._kept.get(sequence)
        if kept is None:
            kept = self._kept[sequence] = _Kept(DraftLength(self._most, self._most))
        count = kept.length.allowed(sequence)
        if count < 1:
            return []
        continuation = kept.index.continuation(sequence.tokens, sequence.unread + count)
        return before_stop(continuation, sequence.params.stop_ids)[sequence.unread :]
