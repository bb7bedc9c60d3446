"""The output of a response in progress: assigns item ids, output indices and sequence numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..core.ids import new_id, tag_of
from ..core.types import Json
from . import events
from .events import Event
from .fragments import FRAGMENTS_PER_GROUP, Fragments

_GROUP_MASK: Final = FRAGMENTS_PER_GROUP - 1


class Output:
    """The items so far by output index, and the next sequence number.

    A dict in `items`, or one that was sent in an event, never changes: closing an item replaces its dict.

    Args:
        response: the response object; `items` is its `output`.
    """

    __slots__ = ("items", "numbered", "response_id", "tag")

    def __init__(self, response: Json) -> None:
        self.response_id: str = response["id"]
        self.tag = tag_of(self.response_id)
        self.items: list[Json] = response["output"]
        self.numbered = 0

    def next(self) -> int:
        """Return the next sequence number."""
        number = self.numbered
        self.numbered = number + 1
        return number

    def add(self, out: list[Event], id_prefix: str, blank: Json) -> int:
        """Add an open item and return its output index."""
        index = len(self.items)
        self.items.append({"id": new_id(id_prefix, self.tag), **blank})
        out.append(events.output_item_added(self.next(), self.response_id, index, self.items[index]))
        return index

    def done(self, out: list[Event], index: int, final: Json) -> None:
        """Close an item by replacing it with its final form."""
        self.items[index] = final
        out.append(events.output_item_done(self.next(), self.response_id, index, final))


@dataclass(slots=True)
class OpenText:
    """The end of a text that is being written, which further deltas extend without reading anything else.

    Attributes:
        output: numbers the events.
        fragments: the text so far.
        event: the event of an earlier piece; only its number and its piece differ in the next one.
    """

    output: Output
    fragments: Fragments
    event: Event

    def append(self, text: str) -> int:
        """Append a piece, and return the number of its event."""
        output, fragments = self.output, self.fragments
        number = output.numbered
        output.numbered = number + 1
        fragments.pieces.append(text)
        if not number & _GROUP_MASK:  # cheaper than to count those of this text
            fragments.group()
        return number

    def event_of(self, number: int, text: str) -> Event:
        """Return the event of an appended piece."""
        return {**self.event, "sequence_number": number, "delta": text}
