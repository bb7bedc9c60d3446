"""One typed constructor per event; events are created nowhere else.

Every constructor returns the event as it is sent, with the keys of the `openai.types.responses` model of the same
`type` (a test compares the two). Events that open or close an item or a content part also have `response_id`, which the
clients and schemas of llama-stack and OGX require and OpenAI's clients ignore. The end of a function's arguments has
the function's `name`, which OpenAI's API reference requires and the package lacks. A constructor does not copy its
arguments: a dict in an event must never change afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..core.types import Json

Event = dict[str, Any]
TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
"""The types of the events that end a stream."""

ItemEvent = Callable[[int, str, int, Json], Event]
"""`(sequence_number, response_id, output_index, item) -> event`"""
BoundaryEvent = Callable[[int, str, str, int, int, Json], Event]
"""`(sequence_number, response_id, item_id, output_index, index in the item, the part) -> event`"""
PartEvent = Callable[[int, str, int, int, Json], Event]
"""`(sequence_number, item_id, output_index, index in the item, the part) -> event`"""
DeltaEvent = Callable[[int, str, int, int, str], Event]
"""`(sequence_number, item_id, output_index, index in the item, a piece of its text) -> event`"""


def _with_response(kind: str) -> Callable[[int, Json], Event]:
    def constructor(sequence_number: int, response: Json) -> Event:
        return {"type": kind, "sequence_number": sequence_number, "response": response}

    return constructor


def _with_item(kind: str) -> ItemEvent:
    def constructor(sequence_number: int, response_id: str, output_index: int, item: Json) -> Event:
        return {
            "type": kind,
            "sequence_number": sequence_number,
            "response_id": response_id,
            "output_index": output_index,
            "item": item,
        }

    return constructor


def _with_part(kind: str, index: str = "content_index") -> BoundaryEvent:
    """Return the constructor of an event that opens or closes a part; only that of a content part has `response_id`."""

    def constructor(
        sequence_number: int, response_id: str, item_id: str, output_index: int, index_in_item: int, part: Json
    ) -> Event:
        within = {"item_id": item_id, "output_index": output_index, index: index_in_item, "part": part}
        head = {"type": kind, "sequence_number": sequence_number}
        return {**head, "response_id": response_id, **within} if index == "content_index" else head | within

    return constructor


def _with_delta(kind: str, index: str = "content_index") -> DeltaEvent:
    def constructor(sequence_number: int, item_id: str, output_index: int, index_in_item: int, delta: str) -> Event:
        return {
            "type": kind,
            "sequence_number": sequence_number,
            "item_id": item_id,
            "output_index": output_index,
            index: index_in_item,
            "delta": delta,
        }

    return constructor


def _with_text_of_part(kind: str, key: str, index: str = "content_index") -> PartEvent:
    def constructor(sequence_number: int, item_id: str, output_index: int, index_in_item: int, part: Json) -> Event:
        return {
            "type": kind,
            "sequence_number": sequence_number,
            "item_id": item_id,
            "output_index": output_index,
            index: index_in_item,
            key: part[key],
        }

    return constructor


created: Final = _with_response("response.created")
queued: Final = _with_response("response.queued")
in_progress: Final = _with_response("response.in_progress")
completed: Final = _with_response("response.completed")
incomplete: Final = _with_response("response.incomplete")
failed: Final = _with_response("response.failed")

output_item_added: Final = _with_item("response.output_item.added")
output_item_done: Final = _with_item("response.output_item.done")

content_part_added: Final = _with_part("response.content_part.added")
content_part_done: Final = _with_part("response.content_part.done")
reasoning_summary_part_added: Final = _with_part("response.reasoning_summary_part.added", "summary_index")
reasoning_summary_part_done: Final = _with_part("response.reasoning_summary_part.done", "summary_index")

refusal_delta: Final = _with_delta("response.refusal.delta")
refusal_done: Final = _with_text_of_part("response.refusal.done", "refusal")
reasoning_text_delta: Final = _with_delta("response.reasoning_text.delta")
reasoning_text_done: Final = _with_text_of_part("response.reasoning_text.done", "text")
reasoning_summary_text_delta: Final = _with_delta("response.reasoning_summary_text.delta", "summary_index")
reasoning_summary_text_done: Final = _with_text_of_part("response.reasoning_summary_text.done", "text", "summary_index")


def error(sequence_number: int, code: str | None, message: str, param: str | None) -> Event:
    """Return the flat error event; a nested one would make the SDK raise before it sees `response.failed`."""
    return {"type": "error", "sequence_number": sequence_number, "code": code, "message": message, "param": param}


def output_text_delta(
    sequence_number: int, item_id: str, output_index: int, content_index: int, delta: str, logprobs: list[Json]
) -> Event:
    """Return a text delta; `logprobs` has the form that `event_logprobs` returns."""
    return {
        "type": "response.output_text.delta",
        "sequence_number": sequence_number,
        "item_id": item_id,
        "output_index": output_index,
        "content_index": content_index,
        "delta": delta,
        "logprobs": logprobs,
    }


def output_text_done(sequence_number: int, item_id: str, output_index: int, content_index: int, part: Json) -> Event:
    return {
        "type": "response.output_text.done",
        "sequence_number": sequence_number,
        "item_id": item_id,
        "output_index": output_index,
        "content_index": content_index,
        "text": part["text"],
        "logprobs": event_logprobs(part["logprobs"]),
    }


def output_text_annotation_added(
    sequence_number: int,
    item_id: str,
    output_index: int,
    content_index: int,
    annotation_index: int,
    annotation: Json,
) -> Event:
    return {
        "type": "response.output_text.annotation.added",
        "sequence_number": sequence_number,
        "item_id": item_id,
        "output_index": output_index,
        "content_index": content_index,
        "annotation_index": annotation_index,
        "annotation": annotation,
    }


def event_logprobs(logprobs: list[Json]) -> list[Json]:
    """Return the logprobs of a content part in the form of events: without `bytes`."""
    return [
        {
            "token": entry["token"],
            "logprob": entry["logprob"],
            "top_logprobs": [{"token": top["token"], "logprob": top["logprob"]} for top in entry["top_logprobs"]],
        }
        for entry in logprobs
    ]
