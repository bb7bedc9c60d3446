"""The order of a stream's items: while a tool call is open, the events of later items wait.

Hosted tools run at the same time. Clients read a stream item by item, so their events do not mix. Messages and
reasoning pass as the assembler emits them: a message stays open while reasoning follows it, since what comes next
decides its phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from .events import Event

_WORDS: Final = ("message", "reasoning")
_IDENTIFYING_FIELDS: Final = ("type", "content_index", "summary_index")
_JOINED_CHARACTERS: Final = 4_096
"""Maximum characters of a held delta to which the next one is appended."""


class ItemOrder:
    """Passes events on in the order of their items.

    The events of the first open call pass at once. Those of other items are held until it is done, and then pass in
    the order of the items. Held events get new sequence numbers when they pass, so that the numbers of a stream ascend.

    Consecutive deltas of one part are joined while they are held, so that memory and checkpoints grow with the text and
    not with the number of tokens. All later events then get lower numbers, so every event of the stream has to pass
    here.

    Attributes:
        joined: how many events fewer than were taken will pass, since they were joined to others.
    """

    __slots__ = ("_buffered", "_number", "_open", "_waiting", "joined")

    def __init__(self) -> None:
        self.joined = 0
        self._open: int | None = None
        self._buffered: dict[int, list[Event]] = {}
        self._waiting: list[int] = []  # a heap of the keys of `_buffered`
        self._number: int | None = None

    @property
    def buffered(self) -> list[Event]:
        """The held events, in the order in which they will pass."""
        return [event for index in sorted(self._buffered) for event in self._buffered[index]]

    def resume(self, still_open: int | None, buffered: Sequence[Event], number: int) -> None:
        """Continue from a checkpoint: the open item, the events held behind it, and the number of the next event."""
        self._open = still_open
        self._number = number if buffered else None
        for event in buffered:
            self._buffer(event["output_index"], event)

    @property
    def idle(self) -> bool:
        """Whether nothing is held, and events keep their numbers."""
        return self._number is None

    def feed(self, events: list[Event]) -> list[Event]:
        """Take the next events of the stream, and return those that pass now."""
        if self._number is None and len(events) == 1 and self._is_delta_of_open_item(events[0]):
            return events  # nothing is held, and a delta opens and closes nothing
        out: list[Event] = []
        for event in events:
            index = event.get("output_index")
            if index is None:
                self._release(out, everything=True)
                self._pass(out, event)
            elif self._open is None or index == self._open:
                self._pass(out, event)
                if self._open is None and self._buffered:
                    self._release(out)
            else:
                self._buffer(index, event)
        return out

    def _is_delta_of_open_item(self, event: Event) -> bool:
        return "delta" in event and (self._open is None or event["output_index"] == self._open)

    def _buffer(self, index: int, event: Event) -> None:
        if self._number is None:
            self._number = event["sequence_number"]
        if (buffered := self._buffered.get(index)) is None:
            heappush(self._waiting, index)
            self._buffered[index] = [event]
        elif _continues(buffered[-1], event):
            buffered[-1] = _joined(buffered[-1], event)
            self.joined += 1
        else:
            buffered.append(event)

    def _release(self, out: list[Event], *, everything: bool = False) -> None:
        while self._buffered and (everything or self._open is None):
            for event in self._buffered.pop(heappop(self._waiting)):
                self._pass(out, event)
        if not self._buffered and not self.joined:
            self._number = None

    def _pass(self, out: list[Event], event: Event) -> None:
        if self._number is not None:
            event["sequence_number"] = self._number
            self._number += 1
        if "item" in event and event["item"]["type"] not in _WORDS:
            self._open = event["output_index"] if event["type"] == "response.output_item.added" else None
        out.append(event)


def _continues(buffered: Event, event: Event) -> bool:
    """Return whether both are deltas of the same part, of which the first can still be extended."""
    before, after = buffered.get("delta"), event.get("delta")
    if not (isinstance(before, str) and isinstance(after, str)) or len(before) > _JOINED_CHARACTERS:
        return False
    return "command_index" not in event and all(
        buffered.get(field) == event.get(field) for field in _IDENTIFYING_FIELDS
    )


def _joined(buffered: Event, event: Event) -> Event:
    more = {"logprobs": buffered["logprobs"] + event["logprobs"]} if "logprobs" in buffered else {}
    return {**buffered, "delta": buffered["delta"] + event["delta"], **more}
