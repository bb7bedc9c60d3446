"""Kinds of streamed content: their form in items and in events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ..core.types import Json
from . import events
from .events import Event
from .fragments import Fragments


@dataclass(frozen=True, slots=True)
class PartKind:
    """One kind of content part.

    Attributes:
        type: the part's `type`.
        item: the type of the items that contain such parts.
        holder: the item's list of such parts.
        key: the part's field that holds the text.
        added, done, closed: the events when a part opens, when its text ends, and when it closes.
        delta: the event for a piece of text; output text has its own, more detailed one.
    """

    type: str
    item: Literal["message", "reasoning"]
    holder: Literal["content", "summary"]
    key: Literal["text", "refusal"]
    added: events.BoundaryEvent
    delta: events.DeltaEvent
    done: events.PartEvent
    closed: events.BoundaryEvent

    def part(self, text: str) -> Json:
        """Return a part of this kind with `text`."""
        part: dict[str, Any] = {"type": self.type, self.key: text}
        if self is OUTPUT_TEXT:
            part["annotations"] = []
            part["logprobs"] = []
        return part


def _text_delta(sequence_number: int, item_id: str, output_index: int, content_index: int, delta: str) -> Event:
    return events.output_text_delta(sequence_number, item_id, output_index, content_index, delta, [])


OUTPUT_TEXT = PartKind(
    "output_text",
    "message",
    "content",
    "text",
    events.content_part_added,
    _text_delta,
    events.output_text_done,
    events.content_part_done,
)
REFUSAL = PartKind(
    "refusal",
    "message",
    "content",
    "refusal",
    events.content_part_added,
    events.refusal_delta,
    events.refusal_done,
    events.content_part_done,
)
REASONING_TEXT = PartKind(
    "reasoning_text",
    "reasoning",
    "content",
    "text",
    events.content_part_added,
    events.reasoning_text_delta,
    events.reasoning_text_done,
    events.content_part_done,
)
SUMMARY_TEXT = PartKind(
    "summary_text",
    "reasoning",
    "summary",
    "text",
    events.reasoning_summary_part_added,
    events.reasoning_summary_text_delta,
    events.reasoning_summary_text_done,
    events.reasoning_summary_part_done,
)
PART_KINDS = {kind.type: kind for kind in (OUTPUT_TEXT, REFUSAL, REASONING_TEXT, SUMMARY_TEXT)}


@dataclass(slots=True)
class OpenPart:
    """A content part that is still being written."""

    kind: PartKind
    index: int
    fragments: Fragments = field(default_factory=Fragments)
    logprobs: list[Json] = field(default_factory=list)
    annotations: list[Json] = field(default_factory=list)

    def length(self) -> int:
        """Return the number of characters so far."""
        return self.fragments.length()

    def finished(self) -> Json:
        """Return the part with the text so far."""
        part = self.kind.part(self.fragments.text())
        if self.kind is OUTPUT_TEXT:
            part["logprobs"], part["annotations"] = self.logprobs, self.annotations
        return part
