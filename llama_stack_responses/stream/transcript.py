"""How a stream was cut into events, in about one byte per event: with the response, it recreates the same events."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ..core.types import Json
from .delta_forms import DeltaRun
from .events import TERMINAL, Event

Mark = list[Any]
"""`[type]` or `[type, output index, index in the item]`, with the type's index in `SHORT_TYPES` if it has one. An added
item is followed by the index of its phase at that time in `PHASES`, a run of deltas by their `lengths`, and the end of
an item that the response leaves out by the item. Output indices count these items too.
"""

SHORT_TYPES: Final = (
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.output_item.done",
    "response.content_part.added",
    "response.content_part.done",
    "response.output_text.delta",
    "response.output_text.done",
    "response.output_text.annotation.added",
    "response.refusal.delta",
    "response.refusal.done",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_part.done",
    "response.reasoning_summary_text.delta",
    "response.reasoning_summary_text.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.queued",
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.done",
    "response.mcp_call_arguments.delta",
    "response.mcp_call_arguments.done",
    "response.mcp_call.in_progress",
    "response.mcp_call.completed",
    "response.mcp_call.failed",
    "response.mcp_list_tools.in_progress",
    "response.mcp_list_tools.completed",
    "response.mcp_list_tools.failed",
    "response.web_search_call.in_progress",
    "response.web_search_call.searching",
    "response.web_search_call.completed",
    "response.file_search_call.in_progress",
    "response.file_search_call.searching",
    "response.file_search_call.completed",
    "response.code_interpreter_call_code.delta",
    "response.code_interpreter_call_code.done",
    "response.code_interpreter_call.in_progress",
    "response.code_interpreter_call.interpreting",
    "response.code_interpreter_call.completed",
    "response.shell_call_command.added",
    "response.shell_call_command.delta",
    "response.shell_call_command.done",
    "response.shell_call_output_content.delta",
    "response.shell_call_output_content.done",
    "response.compaction.compacting",
    "response.image_generation_call.in_progress",
    "response.image_generation_call.generating",
    "response.image_generation_call.partial_image",
    "response.image_generation_call.completed",
)
"""Types of events that are stored as a number, which is shorter than the type. The order is stored: append only."""

PHASES: Final = (None, "commentary", "final_answer")

_CODES: Final = {name: code for code, name in enumerate(SHORT_TYPES)}
_FOLLOWS: Final = TERMINAL | {"error"}
"""Types of events that follow from the response."""
_ITEM_DONE: Final = _CODES["response.output_item.done"]
_ITEM: Final = 3
"""Where the mark of an item's end has the item, if the response leaves it out."""
_ZERO: Final = 0x23
_LENGTH: Final = "I"
"""The type of a length in an array."""
_MAX_LENGTH: Final = 0x5B - _ZERO
"""Lengths up to this are stored as one character each, below the backslash, which JSON would escape."""


type Run = array[int] | list[int | list[int]]
"""The lengths of deltas; a list if one of them has logprobs."""


class Transcript:
    """Records the events of one response as they come.

    Attributes:
        run: the lengths of the deltas of the last event's form, if it is a delta. Others may append that of a delta
            which differs from the last event only in its number and its text.
    """

    __slots__ = ("_marks", "_of", "run")

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self.run: Run = []
        self._of: tuple[Any, ...] = ()

    def note(self, events: Iterable[Event]) -> None:
        """Record some events."""
        for event in events:
            if "delta" in event and "command_index" not in event:
                self._note_delta(event)
            elif event["type"] not in _FOLLOWS:
                self._of = ()
                self._marks.append(_mark(event))

    def note_run(self, run: DeltaRun) -> None:
        """Record a run of deltas."""
        self._find_run(run.form.like)
        self.run.extend(map(len, run.texts))

    def _note_delta(self, event: Event) -> None:
        self._find_run(event)
        length, logprobs = len(event["delta"]), event.get("logprobs")
        if logprobs:
            self._append_pair([length, len(logprobs)])
        else:
            self.run.append(length)

    def _find_run(self, event: Event) -> None:
        """Begin another run if a delta does not belong to the last one."""
        index = _inner(event)
        of = (event["type"], event["output_index"], index)
        if of != self._of:
            self._of, self.run = of, array(_LENGTH)
            self._marks.append([_code(event), event["output_index"], index, self.run])

    def _append_pair(self, lengths: list[int]) -> None:
        if isinstance(self.run, array):
            self.run = self._marks[-1][3] = list(self.run)
        self.run.append(lengths)

    def marks(self, left_out: Mapping[int, Json] | None = None) -> list[Mark]:
        """Return the recorded marks, to be stored.

        Args:
            left_out: the items, by output index, that the response leaves out.
        """
        marks = [[*mark[:3], _packed(mark[3])] if _is_run(mark) else mark for mark in self._marks]
        if left_out:
            marks = [[*mark, left_out[mark[1]]] if _is_end(mark) and mark[1] in left_out else mark for mark in marks]
        return marks


def whole_output(output: Sequence[Json], marks: Iterable[Mark]) -> Sequence[Json]:
    """Return a response's output with the items that it leaves out, by output index."""
    left_out = {mark[1]: mark[3] for mark in marks if _is_end(mark) and len(mark) > _ITEM}
    if not left_out:
        return output
    kept = iter(output)
    return [left_out[index] if index in left_out else next(kept) for index in range(len(output) + len(left_out))]


def lengths(mark: Mark) -> Iterable[tuple[int, int]]:
    """Yield, for each delta of a run, its length in characters and its number of logprobs."""
    for entry in mark[3]:
        match entry:
            case str():
                yield ord(entry) - _ZERO, 0
            case int():
                yield entry, 0
            case _:
                yield entry[0], entry[1]


def event_type(mark: Mark) -> str:
    """Return the type of a mark's event."""
    code: int | str = mark[0]
    return SHORT_TYPES[code] if isinstance(code, int) else code


def _code(event: Event) -> int | str:
    name: str = event["type"]
    return _CODES.get(name, name)


def _mark(event: Event) -> Mark:
    code = _code(event)
    if "output_index" not in event:
        return [code]
    if event["type"] == "response.output_item.added":
        return [code, event["output_index"], -1, PHASES.index(event["item"].get("phase"))]
    return [code, event["output_index"], _inner(event)]


def _inner(event: Event) -> Any:
    index = event.get("content_index", event.get("command_index"))
    return event.get("summary_index", event.get("partial_image_index", -1)) if index is None else index


def _is_end(mark: Mark) -> bool:
    return bool(mark[0] == _ITEM_DONE)


def _is_run(mark: Mark) -> bool:
    return len(mark) == 4 and isinstance(mark[3], array | list)


def _packed(run: Run) -> str | list[int | list[int]]:
    if any(isinstance(length, list) or length > _MAX_LENGTH for length in run):
        return list(run)
    return "".join(chr(_ZERO + length) for length in run if isinstance(length, int))
