"""Recreate the events of a stored response from the response and the transcript of its stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final

from ..core.moderation_results import before_round
from ..core.types import Json
from ..items.form import ItemForm, Stage
from ..items.kinds.shell_events import COMMAND, PRINTED, shell_event
from . import events
from .call_kinds import FORMS
from .events import Event
from .parts import PART_KINDS
from .response import UNDECIDED, terminal_event
from .transcript import PHASES, Mark, Transcript, event_type, lengths, whole_output

_UNKNOWN: Final = ("content", "phase", "encrypted_content")
"""Fields that an item does not have yet when it is added."""
_KNOWN: Final = {"message", "reasoning", *FORMS}
"""Types of items whose own events can be created."""
_NULL_AT_FIRST: Final = UNDECIDED.keys() | {"prompt_cache_diagnostics", "usage"}
"""Fields of a response that are null when it begins."""


def replay(response: Json, marks: Sequence[Mark] | None = None) -> Iterator[Event]:
    """Yield the events that build `response`, numbered from 0, created one at a time.

    Args:
        marks: the transcript of the stream; without it, each text is one delta.

    OpenAI's types have no terminal event for a cancelled response; it ends with `response.incomplete`, whose response
    has the status `cancelled`.
    """
    marks = _outline(response) if marks is None else marks
    again = _Replay(response, whole_output(response["output"], marks))
    for mark in marks:
        yield from again.make(mark)
    yield from again.end()


class _Replay:
    """Creates one response's events in the order of its marks.

    Args:
        output: the items by output index.
    """

    def __init__(self, response: Json, output: Sequence[Json]) -> None:
        self._response = response
        self._output = output
        self._numbers = count()
        self._texts: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        self._logprobs: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        self._annotations: defaultdict[tuple[int, int], int] = defaultdict(int)

    def make(self, mark: Mark) -> Iterator[Event]:
        """Yield the event of a mark, or the deltas of a run."""
        name = event_type(mark).removeprefix("response.")
        match name:
            case "created":
                status = "queued" if self._response["background"] else "in_progress"
                yield events.created(self._next(), self._begun(status))
            case "queued":
                yield events.queued(self._next(), self._begun("queued"))
            case "in_progress":
                yield events.in_progress(self._next(), self._begun("in_progress"))
            case "output_item.added":
                item = _blank(self._output[mark[1]], PHASES[mark[3]])
                yield events.output_item_added(self._next(), self._response["id"], mark[1], item)
            case "output_item.done":
                yield events.output_item_done(self._next(), self._response["id"], mark[1], self._output[mark[1]])
            case _ if self._output[mark[1]]["type"] in _KNOWN:
                yield from self._inner(name, mark)
            case _:
                pass  # an item of a feature that this installation lacks: only the whole item is shown

    def end(self) -> Iterator[Event]:
        """Yield the last events, according to the response's status."""
        if error := self._response["error"]:
            yield events.error(self._next(), error["code"], error["message"], error.get("param"))
        yield terminal_event(self._next(), self._response)

    def _inner(self, name: str, mark: Mark) -> Iterator[Event]:
        """Yield the events of what an item contains, and of its stages."""
        if name in COMMAND or name in PRINTED:
            yield shell_event(name, self._next(), self._output[mark[1]], mark[1], mark[2])
        elif mark[2] < 0:
            yield from self._call(name, mark)
        else:
            yield from self._part(name, mark)

    def _next(self) -> int:
        return next(self._numbers)

    def _begun(self, status: str) -> Json:
        nothing = dict.fromkeys(_NULL_AT_FIRST & self._response.keys())
        moderation = before_round(self._response["moderation"])
        return self._response | {"status": status, "output": [], "moderation": moderation, **nothing}

    def _partial(self, name: str, mark: Mark) -> Event | None:
        """Return the event of an unfinished item if this is its name. The finished one takes its place."""
        item = self._output[mark[1]]
        form = FORMS.get(item["type"])
        if form is None or form.partial is None or name != f"{form.type}.{form.partial.name}":
            return None
        return form.partial.event(self._next(), item["id"], mark[1], mark[2], item)

    def _call(self, name: str, mark: Mark) -> Iterator[Event]:
        item = self._output[mark[1]]
        form = FORMS[item["type"]]
        if stage := _stage(form, name):
            yield form.stages[stage](self._next(), item["id"], mark[1])
            return
        assert form.streamed
        if name.endswith(".done"):
            yield form.streamed.done(self._next(), item, mark[1], item[form.streamed.key])
            return
        for text, _ in self._deltas(mark, item[form.streamed.key], ()):
            yield form.streamed.delta(self._next(), item["id"], mark[1], text)

    def _part(self, name: str, mark: Mark) -> Iterator[Event]:
        if partial := self._partial(name, mark):
            yield partial
            return
        _, output_index, index, *_ = mark
        item = self._output[output_index]
        holder = "summary" if name.startswith("reasoning_summary") else "content"
        part = item[holder][index]
        kind, at = PART_KINDS[part["type"]], (item["id"], output_index, index)
        match name.rpartition(".")[0], name.rpartition(".")[2]:
            case "content_part" | "reasoning_summary_part", "added":
                yield kind.added(self._next(), self._response["id"], *at, kind.part(""))
            case "content_part" | "reasoning_summary_part", "done":
                yield kind.closed(self._next(), self._response["id"], *at, part)
            case _, "done":
                yield kind.done(self._next(), *at, part)
            case _, "added":
                number = self._annotations[output_index, index]
                self._annotations[output_index, index] += 1
                annotation = part["annotations"][number]
                yield events.output_text_annotation_added(self._next(), *at, number, annotation)
            case _:
                yield from self._text(mark, at, part)

    def _text(self, mark: Mark, at: tuple[str, int, int], part: Json) -> Iterator[Event]:
        kind = PART_KINDS[part["type"]]
        for text, logprobs in self._deltas(mark, part[kind.key], part.get("logprobs", ())):
            if logprobs:
                event_logprobs = events.event_logprobs(list(logprobs))
                yield events.output_text_delta(self._next(), *at, text, event_logprobs)
            else:
                yield kind.delta(self._next(), *at, text)

    def _deltas(self, mark: Mark, text: str, logprobs: Sequence[Json]) -> Iterator[tuple[str, Sequence[Json]]]:
        """Yield the pieces of a run: the next run of a text begins where the last one ended."""
        part = (mark[0], mark[1], mark[2])
        for length, shown in lengths(mark):
            start, first = self._texts[part], self._logprobs[part]
            self._texts[part], self._logprobs[part] = start + length, first + shown
            yield text[start : start + length], logprobs[first : first + shown]


def _stage(form: ItemForm, name: str) -> Stage | None:
    """Return the stage that an event's name stands for; None if it stands for none."""
    return next((stage for stage in form.stages if name == f"{form.type}.{stage}"), None)


def _blank(item: Json, phase: str | None) -> Json:
    if form := FORMS.get(item["type"]):
        return form.blank(item)
    if item["type"] not in _KNOWN:
        return item
    blank: dict[str, Any] = {key: value for key, value in item.items() if key not in _UNKNOWN}
    blank["status"] = "in_progress"
    if phase:
        blank["phase"] = phase
    return blank | ({"content": []} if item["type"] == "message" else {"summary": []})


def _outline(response: Json) -> list[Mark]:
    """Return the transcript of a stream in which each text is one delta."""
    outline = Transcript()
    outline.note({"type": name} for name in ("response.created", "response.in_progress"))
    for index, item in enumerate(response["output"]):
        outline.note([{"type": "response.output_item.added", "output_index": index, "item": item}])
        outline.note(_outlined(index, item))
        outline.note([{"type": "response.output_item.done", "output_index": index}])
    return outline.marks()


def _outlined(index: int, item: Json) -> Iterator[Event]:
    if form := FORMS.get(item["type"]):
        yield from _outlined_call(index, item, form)
        return
    for holder in ("summary", "content"):
        for part_index, part in enumerate(item.get(holder) or ()):
            yield from _outlined_part((item["id"], index, part_index), part)


def _outlined_call(index: int, item: Json, form: ItemForm) -> Iterator[Event]:
    ending = item.get("status") or ("failed" if item.get("error") else "completed")
    stages = [stage for stage in form.stages if stage not in ("completed", "failed") or stage == ending]
    yield from (form.stages[stage](0, item["id"], index) for stage in stages[:1])
    if form.streamed:
        yield form.streamed.delta(0, item["id"], index, item[form.streamed.key])
        yield form.streamed.done(0, item, index, item[form.streamed.key])
    if form.details:
        yield from form.details.events(0, item, index)
    yield from (form.stages[stage](0, item["id"], index) for stage in stages[1:])


def _outlined_part(at: tuple[str, int, int], part: Json) -> Iterator[Event]:
    kind = PART_KINDS[part["type"]]
    text, logprobs = part[kind.key], part.get("logprobs")
    yield kind.added(0, "", *at, part)
    if logprobs:
        yield events.output_text_delta(0, *at, text, logprobs)
    elif text:
        yield kind.delta(0, *at, text)
    for number, annotation in enumerate(part.get("annotations", ())):
        yield events.output_text_annotation_added(0, *at, number, annotation)
    yield kind.done(0, *at, part)
    yield kind.closed(0, "", *at, part)
