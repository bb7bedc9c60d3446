"""The events of a stored response, made again from the response alone."""

from __future__ import annotations

from collections.abc import Iterator

from . import events
from .calls import CALL_KINDS
from .events import Event, Json
from .parts import PART_KINDS


def replay(response: Json) -> list[Event]:
    """The events that build `response`, numbered from 0: each text comes as one delta.

    A cancelled response has no terminal event of its own in OpenAI's types; it ends with
    `response.incomplete`, whose response says `cancelled`.
    """
    made: list[Event] = []
    begun = response | {
        "status": "in_progress",
        "output": [],
        "usage": None,
        "error": None,
        "incomplete_details": None,
        "completed_at": None,
    }
    made += [events.created(0, begun), events.in_progress(1, begun)]
    for index, item in enumerate(response["output"]):
        made += _item(len(made), index, item)
    if error := response["error"]:
        made.append(events.error(len(made), error["code"], error["message"], None))
    terminal = {"completed": events.completed, "failed": events.failed}.get(response["status"], events.incomplete)
    made.append(terminal(len(made), response))
    return made


def _item(first: int, index: int, item: Json) -> list[Event]:
    made = list(_inside(first + 1, index, item))
    blank = {key: value for key, value in item.items() if key != "content"}
    if "status" in item:
        blank["status"] = "in_progress"
    if item["type"] == "message":
        blank["content"] = []
    if item["type"] == "reasoning":
        blank["summary"] = []
    if kind := CALL_KINDS.get(item["type"]):
        blank[kind.key] = ""
    done = events.output_item_done(first + 1 + len(made), index, item)
    return [events.output_item_added(first, index, blank), *made, done]


def _inside(first: int, index: int, item: Json) -> Iterator[Event]:
    if kind := CALL_KINDS.get(item["type"]):
        yield kind.delta(first, item["id"], index, item[kind.key])
        yield kind.done(first + 1, item["id"], index, item[kind.key])
        return
    for holder in ("summary", "content"):
        for part_index, part in enumerate(item.get(holder) or ()):
            made = _part(first, item["id"], index, part_index, part)
            yield from made
            first += len(made)


def _part(first: int, item_id: str, index: int, part_index: int, part: Json) -> list[Event]:
    kind = PART_KINDS[part["type"]]
    made = [kind.added(first, item_id, index, part_index, kind.part(""))]
    text = part[kind.key]
    if text or part.get("logprobs"):
        made.append(_text_delta(first + 1, item_id, index, part_index, part, text))
    for number, annotation in enumerate(part.get("annotations", ())):
        made.append(
            events.output_text_annotation_added(first + len(made), item_id, index, part_index, number, annotation)
        )
    made.append(kind.done(first + len(made), item_id, index, part_index, part))
    made.append(kind.closed(first + len(made), item_id, index, part_index, part))
    return made


def _text_delta(number: int, item_id: str, index: int, part_index: int, part: Json, text: str) -> Event:
    if logprobs := part.get("logprobs"):
        shown = events.event_logprobs(logprobs)
        return events.output_text_delta(number, item_id, index, part_index, text, shown)
    return PART_KINDS[part["type"]].delta(number, item_id, index, part_index, text)
