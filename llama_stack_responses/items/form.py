"""The form of an item that a tool makes, in the output of a response and in its events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from ..core.types import Json

TextEvent = Callable[[int, str, int, str], Json]
"""`(sequence_number, item_id, output_index, text) -> event`"""
DoneEvent = Callable[[int, Json, int, str], Json]
"""`(sequence_number, item, output_index, text) -> event`; the item as it was added, or later."""
StageEvent = Callable[[int, str, int], Json]
"""`(sequence_number, item_id, output_index) -> event`"""
PartialEvent = Callable[[int, str, int, int, Json], Json]
"""`(sequence_number, item_id, output_index, number, fields) -> event`"""

Stage = Literal["in_progress", "searching", "interpreting", "generating", "compacting", "completed", "failed"]


@dataclass(frozen=True, slots=True)
class Streamed:
    """The field of an item that the model streams.

    Attributes:
        key: its name.
        nothing: its value if the model streamed nothing.
    """

    key: str
    nothing: str
    delta: TextEvent
    done: DoneEvent


@dataclass(frozen=True, slots=True)
class Details:
    """A field that is sent in parts, which may have their own events.

    Attributes:
        key: its name.
        blank: returns its value before those events, given its final value.
        events: `(sequence_number, item, output_index) -> events`, given the final item.
    """

    key: str
    blank: Callable[[Any], Any]
    events: Callable[[int, Json, int], list[Json]]


@dataclass(frozen=True, slots=True)
class Partial:
    """An event that shows what an open item has not finished, such as an image.

    Attributes:
        name: the last word of the event's type.
        event: creates it. `fields` are those of the unfinished item; for a replay, those of the finished one, since
            what was not finished is not stored.
    """

    name: str
    event: PartialEvent


@dataclass(frozen=True, slots=True)
class ItemType:
    """A type of items.

    Attributes:
        type: the item's `type`.
        id_prefix: the prefix of the item's id.
        has_status: whether the item has a `status` while it is open, or if a client sent it without one.
    """

    type: str
    id_prefix: str
    has_status: bool = field(default=True, kw_only=True)


@dataclass(frozen=True, slots=True)
class ItemForm(ItemType):
    """The form of an item that a tool makes.

    Attributes:
        streamed: the field that the model streams; without one, the item is added when its call is complete.
        stages: the events of a call that the server runs.
        results: the fields that are known at the end, with their values before that.
        late: the fields that are absent before the end.
        details: the field that is sent in parts.
        partial: the event that shows what an open item has not finished.
        failed: the status of a failed call.
        cut: further fields of an incomplete item.
        failure: returns the fields of an item whose call failed on this server, given the message for the model.
        has_caller: whether an item has the `caller` of a program's call; otherwise its id has the program's mark.
        closed: whether the item of a call that the server runs is complete before the call is answered.
    """

    streamed: Streamed | None = None
    stages: Mapping[Stage, StageEvent] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    late: Collection[str] = ()
    details: Details | None = None
    partial: Partial | None = None
    failed: str = "failed"
    cut: Mapping[str, Any] = field(default_factory=dict)
    failure: Callable[[str], Json] | None = None
    has_caller: bool = True
    closed: bool = False

    def blank(self, item: Json) -> Json:
        """Return the item as it was when it was added, without what is known by now."""
        begun = {**item, **self.ended("in_progress"), **self.results}
        for key in self.late:
            begun.pop(key, None)
        if self.streamed:
            begun[self.streamed.key] = ""
        if self.details and self.details.key in begun:
            begun[self.details.key] = self.details.blank(begun[self.details.key])
        return begun

    def ended(self, status: str) -> Json:
        """Return the fields for this status."""
        cut = self.cut if status == "incomplete" else {}
        return {"status": status, **cut} if self.has_status else {**cut}


def stage_events(kind: str, *stages: Stage) -> dict[Stage, StageEvent]:
    """Return the events of the stages of an item of this type. Their types are `response.TYPE.STAGE`."""
    return {stage: partial(_stage, f"response.{kind}.{stage}") for stage in stages}


def streamed_events(key: str, name: str, nothing: str = "") -> Streamed:
    """Return the field `key` with its events, whose types are `response.NAME.delta` and `response.NAME.done`."""
    delta_type, done_type = f"response.{name}.delta", f"response.{name}.done"

    def delta(sequence_number: int, item_id: str, output_index: int, text: str) -> Json:
        return {
            "type": delta_type,
            "sequence_number": sequence_number,
            "item_id": item_id,
            "output_index": output_index,
            "delta": text,
        }

    def done(sequence_number: int, item: Json, output_index: int, text: str) -> Json:
        return {**_stage(done_type, sequence_number, item["id"], output_index), key: text}

    return Streamed(key, nothing, delta, done)


def _stage(name: str, sequence_number: int, item_id: str, output_index: int) -> Json:
    return {"type": name, "sequence_number": sequence_number, "item_id": item_id, "output_index": output_index}
