"""Close a stream that was cut off because its server died, given its events so far."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.types import Json
from ..items.registry import REQUESTS
from . import events
from .call_kinds import FORMS
from .events import Event
from .parts import PART_KINDS, OpenPart

"""Items that wait for the client."""


@dataclass(slots=True)
class _Item:
    """An item as its events so far describe it; `done` is true if the text of its open part or field has ended."""

    index: int
    blank: Json
    parts: dict[str, list[Json]] = field(default_factory=lambda: {"content": [], "summary": []})
    part: OpenPart | None = None
    fragments: list[str] = field(default_factory=list)
    done: bool = False


def close_cut(response_id: str, output: list[Json], happened: Iterable[Event], number: int) -> list[Event]:
    """Return the events that close what `happened` left open, with items as incomplete.

    Args:
        response_id: the response whose output it is.
        output: the response's output before `happened`; the items of `happened` are added to it.
        happened: events in order, from one at which nothing was open but calls that a tool answers.
        number: the next sequence number.
    """
    still_open: dict[int, _Item] = {}
    for event in happened:
        _take(event, output, still_open)
    emitted: list[Event] = []
    for item in still_open.values():
        emitted += _closing(response_id, item, number + len(emitted))
        output[item.index] = emitted[-1]["item"]
    return emitted


def repeated(happened: Iterable[Event]) -> set[int]:
    """Return the output indices of the items of a round that was cut off, which the next worker makes again.

    It makes no second list of an MCP server's tools, if the list is complete.
    """
    added, listed = set[int](), set[int]()
    for event in happened:
        match event["type"]:
            case "response.output_item.added":
                added.add(event["output_index"])
            case "response.output_item.done" if event["item"]["type"] == "mcp_list_tools" and not event["item"].get(
                "error"
            ):
                listed.add(event["output_index"])
    return added - listed


def left_out(output: Sequence[Json], repeated: Collection[int]) -> dict[int, Json]:
    """Return the items, by output index, that a response with this output leaves out when it ends.

    These are the repeated ones. What the last attempt left stays if nothing follows it, as when it was cancelled.
    """
    last = len(output)
    while last - 1 in repeated and (last == len(output) or output[last - 1].get("status") == "completed"):
        last -= 1
    return {index: output[index] for index in sorted(repeated) if index < last}


def asks_client(happened: Iterable[Event]) -> bool:
    """Return whether the events of a round that was cut off contain a complete call of a client tool.

    The client may have run it already. If the round were repeated, the model would most likely make the call again.
    """
    done = (event["item"] for event in happened if event["type"] == "response.output_item.done")
    return any(item["type"] in REQUESTS and item.get("status", "completed") == "completed" for item in done)


def _take(event: Event, output: list[Json], still_open: dict[int, _Item]) -> None:
    index = event.get("output_index")
    if index is None:
        return
    match event["type"].removeprefix("response."):
        case "output_item.added":
            still_open[index] = _Item(index, event["item"])
            output.append(event["item"])
        case "output_item.done":
            del still_open[index]
            output[index] = event["item"]
        case name if index in still_open:
            _take_part(event, name, still_open[index])


def _take_part(event: Event, name: str, item: _Item) -> None:
    match name:
        case "content_part.added" | "reasoning_summary_part.added":
            kind = PART_KINDS[event["part"]["type"]]
            item.part = OpenPart(kind, event["content_index" if kind.holder == "content" else "summary_index"])
        case "content_part.done" | "reasoning_summary_part.done":
            _close_part(item, event["part"])
        case "shell_call_command.done":
            action = item.blank["action"]
            fields = {"action": {**action, "commands": [*action["commands"], event["command"]]}}
            item.blank = item.blank | fields
        case "output_text.annotation.added":
            if part := item.part:
                part.annotations.append(event["annotation"])
        case _ if name.endswith(".delta"):
            _take_delta(event, item)
        case _ if name.endswith(".done"):
            item.done = True


def _take_delta(event: Event, item: _Item) -> None:
    if item.part is None:
        item.fragments.append(event["delta"])
        return
    item.part.fragments.append(event["delta"])
    item.part.logprobs += [_with_bytes(entry) for entry in event.get("logprobs", ())]


def _with_bytes(entry: Json) -> Json:
    """Return a logprob as a content part has it: events omit the bytes."""
    tops = [top | {"bytes": list(top["token"].encode())} for top in entry["top_logprobs"]]
    return entry | {"bytes": list(entry["token"].encode()), "top_logprobs": tops}


def _close_part(item: _Item, part: Json) -> None:
    item.parts[PART_KINDS[part["type"]].holder].append(part)
    item.part, item.done = None, False


def _closing(response_id: str, item: _Item, number: int) -> list[Event]:
    item_id, index = item.blank["id"], item.index
    final: dict[str, Any] = item.blank | {"status": "incomplete"}
    emitted: list[Event] = []
    if form := FORMS.get(item.blank["type"]):
        final = item.blank | form.ended("incomplete")
        if streamed := form.streamed:
            final[streamed.key] = "".join(item.fragments)
            if not item.done:
                emitted.append(streamed.done(number, item.blank, index, final[streamed.key]))
    elif part := item.part:
        finished = part.finished()
        if not item.done:
            emitted.append(part.kind.done(number, item_id, index, part.index, finished))
        emitted.append(part.kind.closed(number + len(emitted), response_id, item_id, index, part.index, finished))
        _close_part(item, finished)
    final |= {holder: parts for holder, parts in item.parts.items() if parts or holder in item.blank}
    if item.blank["type"] == "message":
        final.setdefault("phase", "commentary")  # the answer follows it
    emitted.append(events.output_item_done(number + len(emitted), response_id, index, final))
    return emitted
