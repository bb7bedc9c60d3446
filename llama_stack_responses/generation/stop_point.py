"""Early end of a generation at a point where no item is truncated."""

from __future__ import annotations

from typing import Final

from ..stream.deltas import Delta, Reasoning, Refusal, Text, ToolCall

_KINDS: Final[dict[type, type]] = {Text: Text, Refusal: Text, Reasoning: Reasoning, ToolCall: ToolCall}
"""The kind of item that a delta adds to: message, reasoning, or call. Other deltas belong to an open item, or end the
round."""


class StopPoint:
    """A request to end a generation early, and the points at which it may end.

    These are before a new item of the model, and between two rounds. After a call there is none in the same round: the
    call has to be answered.

    Attributes:
        wanted: whether to end at the next stop point.
    """

    __slots__ = ("_kind", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        self._kind: type | None = None

    def begin_round(self) -> None:
        """Reset for the deltas of a new round."""
        self._kind = None

    def reached(self, delta: Delta) -> bool:
        """Return whether to end before this delta; it must be called for each delta of the round."""
        before, kind = self._kind, _KINDS.get(type(delta))
        if before is ToolCall or kind is None or kind is before:
            return False
        self._kind = kind
        return self.wanted
