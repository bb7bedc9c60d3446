"""A response's output in the making: who gives out item ids, places and sequence numbers."""

from __future__ import annotations

from ..ids import new_id
from . import events
from .events import Event, Json


class Output:
    """The items so far, in their places, and the number of the next event.

    A dict that stands in `items` or has gone out in an event is never changed: closing an item puts a new one there.

    Args:
        response: the response object; `items` is its `output`.
    """

    def __init__(self, response: Json) -> None:
        self.response_id: str = response["id"]
        self.items: list[Json] = response["output"]
        self.numbered = 0

    def next(self) -> int:
        """The number of the event that is made now."""
        number = self.numbered
        self.numbered = number + 1
        return number

    def add(self, out: list[Event], id_prefix: str, blank: Json) -> int:
        """Adds an item that is open from now on; returns its place."""
        index = len(self.items)
        self.items.append({"id": new_id(id_prefix), **blank})
        out.append(events.output_item_added(self.next(), self.response_id, index, self.items[index]))
        return index

    def done(self, out: list[Event], index: int, final: Json) -> None:
        """Closes an item: this is what has become of it."""
        self.items[index] = final
        out.append(events.output_item_done(self.next(), self.response_id, index, final))
