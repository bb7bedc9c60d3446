"""Where a response can be ended before its time, so that nothing that it began is cut."""

from __future__ import annotations

from typing import Final

from ..core.stream.deltas import Delta, Reasoning, Refusal, Text, ToolCall

_KINDS: Final[dict[type, type]] = {Text: Text, Refusal: Text, Reasoning: Reasoning, ToolCall: ToolCall}
"""What a delta writes: a message, reasoning, or calls. The others say more of what is there."""


class Boundary:
    """Somebody's wish that a response ends, and the places where it may.

    These are before an item that the model is about to begin, and between two rounds. Behind a call there is none in
    the same round: a call wants its answer.

    Attributes:
        wanted: whether the response is to end at the next such place.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._kind: type | None = None

    def begin_round(self) -> None:
        """Says that the deltas of another round follow."""
        self._kind = None

    def reached(self, delta: Delta) -> bool:
        """Whether the response is to end before this delta of the round."""
        before, kind = self._kind, _KINDS.get(type(delta))
        if before is ToolCall or kind is None or kind is before:
            return False
        self._kind = kind
        return self.wanted
