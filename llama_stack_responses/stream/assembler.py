"""The assembler turns deltas into events and the finished response (sans-I/O).

It does no I/O and never awaits. Together with its parts, the output and the tool calls, it alone creates item ids,
output indices, content indices and sequence numbers. `response` is the object that the events so far describe; items
that are still open stay in the state in which they were added. A streaming caller forwards the events, and any other
caller drops them, so there is only one code path.

A dict that was sent in an event or is in `response["output"]` never changes: closing an item replaces its dict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

from ..core.errors import ApiError
from ..core.types import Json
from ..items.reasoning_segments import ReasoningSegment
from ..items.tool_usage import ImageUsage, tool_usage
from . import events
from .call_kinds import CallKind, ServerCall, Whole
from .deltas import Annotation, Delta, Finish, FinishReason, Reasoning, Refusal, Text, ToolCall
from .events import Event
from .fragments import LARGE_CHARACTERS
from .output import OpenText, Output
from .parts import OUTPUT_TEXT, REASONING_TEXT, REFUSAL, SUMMARY_TEXT, OpenPart, PartKind
from .recovery import left_out
from .response import UNDECIDED, terminal_event
from .tool_calls import ItemStatus, ToolCalls
from .usage import Usage, known, usage_of

Phase = Literal["commentary", "final_answer"]

_JSON_BEGINS: Final = frozenset('{["-0123456789')
_SIGNATURE_CHARACTERS: Final = 64
"""Characters counted for a signature in addition to its own: each is sealed with a part of the reasoning."""
type _Signed = tuple[str | None, str | None, str | None, str | None]
"""Signature, call id, source and entry of a segment."""
_TEXT_KINDS: Final = (REASONING_TEXT, SUMMARY_TEXT)
_NO_IMAGES: Final = ImageUsage()


@dataclass(slots=True)
class _OpenItem:
    """An item that is still being written."""

    id: str
    index: int
    blank: Json
    content: list[Json] = field(default_factory=list)
    summary: list[Json] = field(default_factory=list)
    part: OpenPart | None = None
    overtaken: bool = False
    written: dict[str, int] = field(default_factory=dict)
    signatures: list[tuple[Mapping[str, int], _Signed]] = field(default_factory=list)
    signed: int = 0
    source: str | None = None
    sealed: tuple[tuple[int, int], str] | None = None

    def parts(self, kind: PartKind) -> list[Json]:
        return self.content if kind.holder == "content" else self.summary

    def sign(self, delta: Reasoning) -> None:
        """Record a signature or an entry, and how much of the reasoning and of its summary precedes it."""
        signature, entry = delta.signature, delta.origin.entry if delta.origin else None
        open_length = {self.part.kind.type: self.part.length()} if self.part else {}
        lengths = {kind.type: self.written.get(kind.type, 0) + open_length.get(kind.type, 0) for kind in _TEXT_KINDS}
        self.signatures.append((lengths, (signature, delta.call_id, self.source, entry)))
        self.source = None
        self.signed += _SIGNATURE_CHARACTERS + len(signature or "") + len(entry or "")

    @property
    def extent(self) -> tuple[int, int]:
        """The characters so far, and the signatures."""
        return sum(self.written.values()) + (self.part.length() if self.part else 0), len(self.signatures)

    def seal(self, seal: Callable[[Sequence[ReasoningSegment]], str]) -> str:
        """Return the sealed reasoning so far. Keep it, so that it is not sealed again when the item closes."""
        if self.sealed is None or self.sealed[0] != self.extent:
            self.sealed = self.extent, seal(self._segments())
        return self.sealed[1]

    def is_unprepared(self, *, sealed: bool) -> bool:
        """Return whether closing the item takes long unless it is prepared, with a seal if it is to be `sealed`."""
        if self.extent[0] + self.signed < LARGE_CHARACTERS:
            return False
        in_fragments = self.part is not None and self.part.fragments.is_unprepared()
        return in_fragments or (sealed and (self.sealed is None or self.sealed[0] != self.extent))

    def prepare(self, seal: Callable[[Sequence[ReasoningSegment]], str] | None = None) -> None:
        """Do what takes long when a large item closes."""
        if self.part:
            self.part.fragments.join()
        if seal:
            self.seal(seal)

    def _segments(self) -> list[ReasoningSegment]:
        """Return the reasoning, split at its signatures; its summary if that is all there is."""
        last = self.part
        kind = REASONING_TEXT if self.content or (last and last.kind is REASONING_TEXT) else SUMMARY_TEXT
        text = "".join([part["text"] for part in self.parts(kind)])
        if last and last.kind is kind:
            text += last.fragments.text()
        segments: list[ReasoningSegment] = []
        start = 0
        for lengths, signed in self.signatures:
            segments.append(ReasoningSegment(text[start : lengths[kind.type]], *signed))
            start = lengths[kind.type]
        ends = segments and start == len(text)
        return segments if ends else [*segments, ReasoningSegment(text[start:], source=self.source)]

    def close_part(self) -> tuple[OpenPart, Json] | None:
        """Close the open part; return it and its finished form, or None if no part is open."""
        part, self.part = self.part, None
        if part is None:
            return None
        finished = part.finished()
        self.written[part.kind.type] = self.written.get(part.kind.type, 0) + len(finished[part.kind.key])
        self.parts(part.kind).append(finished)
        return part, finished


class Assembler:
    """Builds one response.

    Args:
        response: the response object with status `in_progress` and an empty `output`, which the assembler copies.
        kind_of: returns how a call of the function with this name appears to the client; None if it is hidden.
        show_logprobs: whether the client asked for the logprobs of the text.
        seal: returns the `encrypted_content` of a reasoning item.
        whole_of, meant: as `ToolCalls` takes them.

    Attributes:
        response: the response so far. It has the fields of its outcome only from `set_outcome` on: with a few fields
            less, the dict of a response that is streamed takes half the memory.
        calls: the tool calls.
        image_usage: the tokens of generated images.
        repeated: the output indices of items that `set_outcome` leaves out, as `left_out` says.
        left_out: the items, by output index, that `set_outcome` has left out; None if there are none.
        open_text: the text to which the last delta was appended; None if the next delta needs more than that.
        structured: whether the answer has to be JSON. It is set before the first delta.
    """

    __slots__ = (
        "_blanks",
        "_buffered",
        "_message",
        "_next",
        "_outcome",
        "_output",
        "_reasoning",
        "_seal",
        "_show_logprobs",
        "_used",
        "calls",
        "image_usage",
        "left_out",
        "open_text",
        "repeated",
        "response",
        "structured",
    )

    def __init__(
        self,
        response: Json,
        kind_of: Callable[[str], CallKind | None],
        *,
        show_logprobs: bool = False,
        seal: Callable[[Sequence[ReasoningSegment]], str] | None = None,
        whole_of: Callable[[str], Whole | None] = lambda _: None,
        meant: Callable[[str], str] = str,
    ) -> None:
        self.response = {name: value for name, value in response.items() if name not in UNDECIDED}
        self._outcome = UNDECIDED
        self._output = Output(response)
        self._next = self._output.next
        self.calls = ToolCalls(self._output, kind_of, whole_of, meant)
        self._show_logprobs = show_logprobs
        self.structured = False
        self._seal = seal
        self._used = Usage()
        self.image_usage = _NO_IMAGES
        self.repeated: Collection[int] = ()
        self.left_out: Mapping[int, Json] | None = None
        self._blanks: list[Text] = []
        self._message: _OpenItem | None = None
        self._reasoning: _OpenItem | None = None
        self._buffered: list[Text | Reasoning | Refusal | Annotation] = []
        self.open_text: OpenText | None = None

    # Lifecycle of the response

    def start(self) -> list[Event]:
        """Return the two events that begin every response."""
        snapshot = self._snapshot()
        return [events.created(self._next(), snapshot), events.in_progress(self._next(), snapshot)]

    def enqueue(self) -> list[Event]:
        """Return the two events that begin a queued response."""
        snapshot = self._snapshot()
        return [events.created(self._next(), snapshot), events.queued(self._next(), snapshot)]

    def resume(
        self,
        number: int,
        used: Usage,
        added: Iterable[Json] = (),
        waiting: Sequence[ServerCall] = (),
        happened: Iterable[Event] = (),
        image_usage: ImageUsage = _NO_IMAGES,
        repeated: Collection[int] = (),
    ) -> None:
        """Continue after another assembler of the same response, with no open items but calls that wait.

        Args:
            number: the next sequence number.
            used: the tokens of the earlier rounds.
            added: what those rounds added to the conversation.
            waiting: the last round's calls that are not yet answered.
            happened: the events so far; only those about these calls are used.
            image_usage: the tokens of the images that were generated.
            repeated: the output indices of items of rounds that were cut off and are made again.
        """
        self.repeated = repeated
        self._output.numbered = number
        self._used = used
        self.image_usage = image_usage
        self.response["usage"] = known(used)
        self.calls.resume(added, waiting, happened)

    def proceed(self) -> list[Event]:
        """Return the event with which a queued response starts."""
        return [events.in_progress(self._next(), self._snapshot())]

    @property
    def numbered(self) -> int:
        """The number of events so far."""
        return self._output.numbered

    @property
    def used(self) -> Usage:
        """The tokens of all finished rounds."""
        return self._used

    @property
    def final_output(self) -> list[Json]:
        """The output so far without the items that the response will leave out."""
        leaving = left_out(self._output.items, self.repeated)
        return [item for index, item in enumerate(self._output.items) if index not in leaving]

    def tail(self, characters: int) -> tuple[str | None, str]:
        """Return the type of the text that is being written, None if there is none, and its last characters."""
        for item in (self._message, self._reasoning):
            if item and item.part:
                length, last = 0, list[str]()
                for fragment in reversed(item.part.fragments.pieces):
                    last.append(fragment)
                    length += len(fragment)
                    if length >= characters:
                        break
                return item.blank["type"], "".join(reversed(last))[-characters:]
        return None, ""

    def preparation(self, delta: Delta | None = None) -> Callable[[], None] | None:
        """Return the work on a large item that a delta may close, or that `close` closes; None if there is none.

        The work belongs in a thread. Until it has ended, the assembler takes no delta.
        """
        if isinstance(delta, Reasoning | Annotation):
            return self.calls.preparation(delta)
        if isinstance(delta, Text) and self._begins_json() and not delta.text.strip():
            return None  # it closes nothing yet
        if (item := self._reasoning) and item.is_unprepared(sealed=self._seal is not None):
            return partial(item.prepare, self._seal)
        continues = isinstance(delta, Text) and not (self._message and self._message.overtaken)
        if (item := self._message) and not continues and item.is_unprepared(sealed=False):
            return item.prepare
        return self.calls.preparation(delta, waits=bool(self._buffered))

    def feed(self, delta: Delta) -> list[Event]:
        """Take one delta and return its events, often one, sometimes none."""
        self.open_text = None
        match delta:
            case Text():
                return self._text(delta)
            case Reasoning():
                return self._reason(delta)
            case ToolCall():
                return self._tool_call(delta)
            case Refusal():
                return self._refuse(delta)
            case Annotation():
                return self._annotate(delta)
            case Finish():
                self.count(delta.usage)
                return self.close("completed" if delta.reason in ("stop", "tool_calls") else "incomplete")

    def count(self, usage: Usage) -> None:
        """Count the tokens of a round that has ended."""
        self._used += usage
        self.response["usage"] = known(self._used)

    def finish_unasked(self, reason: FinishReason) -> list[Event]:
        """Finish without the model's answer: it was not asked, so it is known to have used no tokens."""
        out = self.feed(Finish(reason))
        self.response["usage"] = usage_of(self._used)
        return out

    def close(self, status: ItemStatus) -> list[Event]:
        """Close every item that is being written; the next delta opens a new one.

        With `incomplete`, close also the items whose tools are running.
        """
        self.open_text = None
        out: list[Event] = []
        phase: Phase = "commentary" if self.calls.being_written else "final_answer"
        out += self._release_blanks(phase)
        self._close_words(out, status, phase)
        out += self.calls.close(status)
        if self._buffered:
            self._emit_buffered(out)
            out += self._release_blanks(phase)
            self._close_words(out, status, phase)
        return out

    def _close_words(self, out: list[Event], status: ItemStatus, phase: Phase) -> None:
        self._close_reasoning(out, status)
        self._close_message(out, status, phase)

    def set_outcome(
        self,
        status: Literal["completed", "incomplete", "failed", "cancelled"],
        *,
        completed_at: int | None = None,
        incomplete_reason: str | None = None,
        error: ApiError | None = None,
    ) -> None:
        """Set the last fields of the closed response. Until `end`, a later call replaces them."""
        if self.repeated:
            self.left_out, self._output.items[:] = left_out(self._output.items, self.repeated), self.final_output
            self.repeated = ()
        self._outcome = {
            "completed_at": completed_at,
            "incomplete_details": {"reason": incomplete_reason} if incomplete_reason else None,
            "error": error.response_error() if error else None,
            "tool_usage": tool_usage(self.response["output"], self.image_usage),
        }
        self.response |= {"status": status, **self._outcome}

    def end(self) -> list[Event]:
        """Return the terminal event, after an `error` event if there was an error."""
        out: list[Event] = []
        if error := self._outcome["error"]:
            out.append(events.error(self._next(), error["code"], error["message"], error.get("param")))
        out.append(terminal_event(self._next(), self._snapshot()))
        return out

    def cut(self, error: ApiError) -> list[Event]:
        """Return only the `error` event, for a stream that ends without a known outcome."""
        return [events.error(self._next(), error.code, error.message, error.param)]

    # Text, refusals and reasoning

    def _text(self, delta: Text) -> list[Event]:
        if self._begins_json():
            # Whitespace before JSON, or before a call: what follows decides.
            self._blanks.append(delta)
            if not delta.text.strip():
                return []
            delta, self._blanks = _joined(self._blanks), []
        return self._say(delta, self._early_phase(delta.text))

    def _begins_json(self) -> bool:
        """Return whether a text now would begin a message that may be JSON."""
        return self.structured and (self._message is None or self._message.overtaken)

    def _say(self, delta: Text, phase: dict[str, Phase]) -> list[Event]:
        item = self._message
        out: list[Event] = []
        part = item.part if item and not item.overtaken else None
        if item is None or part is None or part.kind is not OUTPUT_TEXT:
            if self._holds(out, delta):
                return out
            item, part, opened = self._open_message_part(OUTPUT_TEXT, phase)
            out += opened
        part.fragments.append(delta.text)
        logprobs: list[Json] = []
        if delta.logprobs and self._show_logprobs:
            part.logprobs.extend(delta.logprobs)
            logprobs = events.event_logprobs(delta.logprobs)
        event = events.output_text_delta(self._next(), item.id, item.index, part.index, delta.text, logprobs)
        out.append(event)
        self.open_text = None if logprobs else OpenText(self._output, part.fragments, event)
        return out

    def _release_blanks(self, phase: Phase) -> list[Event]:
        """Emit whitespace that no text followed."""
        blanks, self._blanks = self._blanks, []
        return self._say(_joined(blanks), {"phase": phase}) if blanks else []

    def _refuse(self, delta: Refusal) -> list[Event]:
        out = self._release_blanks("final_answer")
        if self._holds(out, delta):
            return out
        item, part, opened = self._open_message_part(REFUSAL, {})
        out += opened
        self._append(out, item, part, delta.text)
        return out

    def _reason(self, delta: Reasoning) -> list[Event]:
        out: list[Event] = []
        origin = delta.origin
        if origin and origin.call is not None:
            delta.call_id = self.calls.id_of(origin.call, delta.call_id or "")
            delta.origin = origin = replace(origin, call=None)  # it may be held back until the call is over
        if self._holds(out, delta):
            return out
        if self._message:
            self._message.overtaken = True
        if self._reasoning is None:
            self._reasoning = self._open(out, "rs", {"type": "reasoning", "status": "in_progress", "summary": []})
        if delta.text:
            part = self._part(out, self._reasoning, SUMMARY_TEXT if delta.summary else REASONING_TEXT)
            self._append(out, self._reasoning, part, delta.text)
            if origin and self._reasoning.source is None:
                self._reasoning.source = origin.source
        if delta.signature or (origin and origin.entry):
            self._reasoning.sign(delta)
        return out

    def _annotate(self, delta: Annotation) -> list[Event]:
        item = self._message
        if self._buffered:
            self._buffered.append(delta)
        if item is None or item.part is None or item.part.kind is not OUTPUT_TEXT:
            return []
        part = item.part
        annotation = delta.value
        if delta.length is not None:
            annotation = annotation | _position_fields(annotation["type"], part.length(), delta.length)
        index = len(part.annotations)
        part.annotations.append(annotation)
        return [events.output_text_annotation_added(self._next(), item.id, item.index, part.index, index, annotation)]

    def _open_message_part(self, kind: PartKind, phase: dict[str, Phase]) -> tuple[_OpenItem, OpenPart, list[Event]]:
        """Return the open part of this kind; text after reasoning begins a new message."""
        out: list[Event] = []
        if self._message and self._message.overtaken:
            self._close_message(out, "completed", "commentary")
        self._close_reasoning(out, "completed")
        if self._message is None:
            blank = {"type": "message", "role": "assistant", "status": "in_progress", "content": []}
            self._message = self._open(out, "msg", blank | phase)
        return self._message, self._part(out, self._message, kind), out

    def _early_phase(self, text: str) -> dict[str, Phase]:
        """Return the phase of a message that begins with `text`, if it is already known.

        OpenAI's stream helper decides by the phase in `output_item.added` whether to parse the finished text, so a
        preamble to JSON must be marked from its first word. Usually only what follows decides.
        """
        is_preamble = self.structured and text.lstrip()[:1] not in _JSON_BEGINS
        return {"phase": "commentary"} if is_preamble else {}

    def _part(self, out: list[Event], item: _OpenItem, kind: PartKind) -> OpenPart:
        if item.part and item.part.kind is kind:
            return item.part
        self._close_part(out, item)
        item.part = part = OpenPart(kind, len(item.parts(kind)))
        out.append(kind.added(self._next(), self._output.response_id, item.id, item.index, part.index, kind.part("")))
        return part

    def _append(self, out: list[Event], item: _OpenItem, part: OpenPart, text: str) -> None:
        part.fragments.append(text)
        event = part.kind.delta(self._next(), item.id, item.index, part.index, text)
        out.append(event)
        self.open_text = OpenText(self._output, part.fragments, event)

    def _close_part(self, out: list[Event], item: _OpenItem) -> None:
        if (closed := item.close_part()) is None:
            return
        part, finished = closed
        kind = part.kind
        out.append(kind.done(self._next(), item.id, item.index, part.index, finished))
        out.append(kind.closed(self._next(), self._output.response_id, item.id, item.index, part.index, finished))

    def _close_message(self, out: list[Event], status: ItemStatus, phase: Phase) -> None:
        item, self._message = self._message, None
        if item:
            self._close_part(out, item)
            final = item.blank | {"phase": phase, "status": status, "content": item.content}
            self._output.done(out, item.index, final)

    def _close_reasoning(self, out: list[Event], status: ItemStatus) -> None:
        item, self._reasoning = self._reasoning, None
        if item:
            self._close_part(out, item)
            final = item.blank | {"status": status, "summary": item.summary}
            if item.content:
                final["content"] = item.content
            if self._seal:
                final["encrypted_content"] = item.seal(self._seal)
            self._output.done(out, item.index, final)

    # Tool calls

    def _tool_call(self, delta: ToolCall) -> list[Event]:
        out: list[Event] = []
        if self.calls.is_new(delta):
            out += self._release_blanks("commentary")
            self._close_reasoning(out, "completed")
            self._close_message(out, "completed", "commentary")
        out += self.calls.feed(delta)
        if not self._buffered:
            self.open_text = self.calls.open_text(delta.key, out)
        elif self.calls.pause(out):
            self._emit_buffered(out)
        return out

    def _holds(self, out: list[Event], delta: Text | Reasoning | Refusal) -> bool:
        """Hold the delta back while an earlier call is incomplete: only one item is open at a time."""
        if not self.calls.being_written or (not self._buffered and self.calls.pause(out)):
            return False
        self._buffered.append(delta)
        return True

    def _emit_buffered(self, out: list[Event]) -> None:
        buffered, self._buffered = self._buffered, []
        for delta in buffered:
            out += self.feed(delta)
        self.open_text = None  # it is not the text of the delta that released these

    def _open(self, out: list[Event], id_prefix: str, blank: Json) -> _OpenItem:
        index = self._output.add(out, id_prefix, blank)
        item = self._output.items[index]
        return _OpenItem(item["id"], index, item)

    def _snapshot(self) -> dict[str, Any]:
        return self.response | self._outcome | {"output": list(self._output.items)}


def _position_fields(kind: str, end: int, length: int) -> dict[str, int]:
    """Return the position fields of an annotation of this type on the `length` characters before `end`."""
    return {"index": end} if kind == "file_citation" else {"start_index": end - length, "end_index": end}


def _joined(pieces: Sequence[Text]) -> Text:
    logprobs = [entry for piece in pieces for entry in piece.logprobs or ()]
    return Text("".join(piece.text for piece in pieces), logprobs or None)
