"""One typed constructor per event; events are created nowhere else.

Every constructor returns the event as it is sent, with the keys of the `openai.types.responses` model of the same
`type` (a test compares the two). Events that open or close an item or a content part also have `response_id`, which the
clients and schemas of llama-stack and OGX require and OpenAI's clients ignore. The end of a function's arguments has
the function's `name`, which OpenAI's API reference requires and the package lacks. A constructor does not copy its
arguments: a dict in an event must never change afterwards.
"""

from __future__ import annotations

from typing import Any, Final

from ..types import Json

Event = dict[str, Any]
TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
"""The types of the events that end a stream."""


def created(sequence_number: int, response: Json) -> Event:
    return {"type": "response.created", "sequence_number": sequence_number, "response": response}


def queued(sequence_number: int, response: Json) -> Event:
    return {"type": "response.queued", "sequence_number": sequence_number, "response": response}


def in_progress(sequence_number: int, response: Json) -> Event:
    return {"type": "response.in_progress", "sequence_number": sequence_number, "response": response}


def completed(sequence_number: int, response: Json) -> Event:
    return {"type": "response.completed", "sequence_number": sequence_number, "response": response}


def incomplete(sequence_number: int, response: Json) -> Event:
    return {"type": "response.incomplete", "sequence_number": sequence_number, "response": response}


def failed(sequence_number: int, response: Json) -> Event:
    return {"type": "response.failed", "sequence_number": sequence_number, "response": response}


def error(sequence_number: int, code: str | None, message: str, param: str | None) -> Event:
    """Return the flat error event; a nested one would make the SDK raise before it sees `response.failed`."""
    return {"type": "error", "sequence_number": sequence_number, "code": code, "message": message, "param": param}


def output_item_added(sequence_number: int, response_id: str, output_index: int, item: Json) -> Event:
    return {
        "type": "response.output_item.added",
        "sequence_number": sequence_number,
        "response_id": response_id,
        "output_index": output_index,
        "item": item,
    }


def output_item_done(sequence_number: int, response_id: str, output_index: int, item: Json) -> Event:
    return {
        "type": "response.output_item.done",
        "sequence_number": sequence_number,
        "response_id": response_id,
        "output_index": output_index,
        "item": item,
    }


def content_part_added(
    sequence_number: int, response_id: str, item_id: str, output_index: int, content_index: int, part: Json
) -> Event:
    return {
        "type": "response.content_part.added",
        "sequence_number": sequence_number,
        "response_id": response_id,
        "item_id": item_id,
        "output_index": output_index,
        "content_index": content_index,
        "part": part,
    }


def content_part_done(
    sequence_number: int, response_id: str, item_id: str, output_index: int, content_index: int, part: Json
) -> Event:
    return {
        "type": "response.content_part.done",
        "sequence_number": sequence_number,
        "response_id": response_id,
        "item_id": item_id,
        "output_index": output_index,
        "content_index": content_index,
        "part": part,
    }


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


def refusal_delta(sequence_number: int, item_id: str, output_index: int, content_index: int, delta: str) -> Event:
    return {
        "type": "response.refusal.delta",
        "sequence_number": sequence_number,
        "item_id": item_id,
        "output_index": output_index,
        "content_index": content_index,
        "delta": delta,
    }


def refusal_done(sequence_number: int, item_id: str, output_index: int, content_index: int, part: Json) -> Event:
    return {
        "type": "response.refusal.done",
        "sequence_number": sequence_number,
        "item_id": item_id,
        "output_index": output_index,
        "content_index": content_index,
        "refusal": part["refusal"],
    }


def reasoning_text_delta(
    sequence_number: int, item_id: str, output_index: int, content_index: int, delta: str
) -> Event:
    return {
        "type": "response.reasoning_text.delta",
        "sequence_number": sequence_number,
        "item_id": item_id,
        "output_index": output_index,
        "content_index": content_index,
        "delta": delta,
    }


def reasoning_text_done(sequence_number: int, item_id: str, output_index: int, content_index: int, part: Json) -> Event:
    return {
        "type": "response.reasoning_text.done",
        "sequence_number": sequence_number,
        "item_id": item_id,
        "output_index": output_index,
        "content_index": content_index,
        "text": part["text"],
    }


def reasoning_summary_part_added(
    sequence_number: int, _response_id: str, item_id: str, output_index: int, summary_index: int, part: Json
) -> Event:
    return {
        "type": "response.reasoning_summary_part.added",
        "sequence_number": sequence_number,
        "item_id": item_id,
        "output_index": output_index,
        "summary_index": summary_index,
        "part": part,
    }


def reasoning_summary_part_done(
    sequence_number: int, _response_id: str, item_id: str, output_index: int, summary_index: int, part: Json
) -> Event:
    return {
        "type": "response.reasoning_summary_part.done",
        "sequence_number": sequence_number,
        "item_id": item_id,
        "output_index": output_index,
        "summary_index": summary_index,
        "part": part,
    }


def reasoning_summary_text_delta(
    sequence_number: int, item_id: str, output_index: int, summary_index: int, delta: str
) -> Event:
    return {
        "type": "response.reasoning_summary_text.delta",
        "sequence_number": sequence_number,
        "item_id": item_id,
        "output_index": output_index,
        "summary_index": summary_index,
        "delta": delta,
    }


def reasoning_summary_text_done(
    sequence_number: int, item_id: str, output_index: int, summary_index: int, part: Json
) -> Event:
    return {
        "type": "response.reasoning_summary_text.done",
        "sequence_number": sequence_number,
        "item_id": item_id,
        "output_index": output_index,
        "summary_index": summary_index,
        "text": part["text"],
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
