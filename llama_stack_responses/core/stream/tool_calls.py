"""The tool calls of a response: turns fragments into items, events, and calls for the server to run.

This is the part of the assembler that handles calls. A client's call is done when the model has written it. A call that
the server runs stays open until its tool has ended; it is listed in `server_calls`.

Calls are streamed one at a time. If the model server interleaves fragments of several calls, later calls wait until the
arguments of the first are a complete JSON object, or the round ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..ids import new_id
from ..types import Json
from .calls import FORMS, ArgumentDecoder, CallKind, ItemForm, ServerCall, Stage
from .deltas import ToolCall
from .events import Event
from .output import Output
from .whole_object import WholeObject

ItemStatus = Literal["completed", "incomplete"]


@dataclass(slots=True)
class _OpenCall:
    """A call that is being written; its item is added once its name is complete and no other call is open."""

    name: str = ""
    call_id: str = ""
    fragments: list[str] = field(default_factory=list)
    opened: bool = False
    kind: CallKind | None = None
    index: int | None = None
    decoder: ArgumentDecoder | None = None
    decoded: list[str] = field(default_factory=list)
    closed: bool = False
    arguments: WholeObject = field(default_factory=WholeObject)

    def is_whole(self) -> bool:
        """Return whether the arguments are complete."""
        return bool(self.name) and self.arguments.reached(self.fragments)


class ToolCalls:
    """The calls of one response.

    Args:
        output: receives their items.
        kind_of: returns how a call of the function with this name appears to the client; None if it is hidden.

    Attributes:
        server_calls: complete calls that the server has yet to answer: those of hosted tools, and invalid ones.
        shown: how many calls of this round the client has to run.
    """

    def __init__(self, output: Output, kind_of: Callable[[str], CallKind | None]) -> None:
        self.server_calls: list[ServerCall] = []
        self.shown = 0
        self._output = output
        self._kind_of = kind_of
        self._writing: dict[Hashable, _OpenCall] = {}
        self._line: deque[_OpenCall] = deque()
        self._running: set[int] = set()
        self._call_ids: set[str] = set()
        self._emitted: set[tuple[int, str]] = set()

    def resume(self, said: Iterable[Json], waiting: Sequence[ServerCall], happened: Iterable[Event]) -> None:
        """Continue after other assemblers, given what they added, the unanswered calls, and the events about those."""
        self._emitted = {
            (event["output_index"], event["type"].rpartition(".")[2]) for event in happened if "output_index" in event
        }
        self._call_ids = {item["call_id"] for item in [*self._output.items, *said] if "call_id" in item}
        self._call_ids |= {call.call_id for call in waiting}
        self._running = {call.index for call in waiting if call.index is not None}

    @property
    def being_written(self) -> bool:
        """Whether the model has begun calls in this round."""
        return bool(self._writing)

    def is_new(self, delta: ToolCall) -> bool:
        """Return whether this fragment begins a call."""
        return delta.key not in self._writing

    def feed(self, delta: ToolCall) -> list[Event]:
        """Take a fragment and return its events."""
        out: list[Event] = []
        call = self._writing.get(delta.key) or self._queue(delta.key)
        if call.closed:
            return out
        if not call.opened:
            call.call_id = call.call_id or delta.call_id
            call.name += delta.name if delta.name != call.name else ""
        if delta.arguments:
            # A name can come in pieces, so it is complete only when arguments follow it.
            if call.name and not call.opened and call is self._line[0]:
                self._open(out, call)
            self._append(out, call, delta.arguments)
        if len(self._line) > 1:
            self._take_turns(out)
        return out

    def pause(self, out: list[Event]) -> bool:
        """Close the complete calls, since other content follows; return False if one is incomplete."""
        self._take_turns(out)
        if self._line and self._line[0].is_whole():
            self._finish_first(out)
        return not self._line

    def close(self, status: ItemStatus) -> list[Event]:
        """Close the calls that are being written, and with `incomplete` also those that run."""
        out: list[Event] = []
        line, self._line = self._line, deque()
        self._writing = {}
        for call in line:
            if call.name or call.fragments:
                self._close(out, call, status)
        if status == "incomplete":
            for index in sorted(self._running):
                item = self._output.items[index]
                self._output.done(out, index, item | FORMS[item["type"]].ended("incomplete"))
            self._running.clear()
        return out

    def begin(self, form: ItemForm, fields: Json) -> tuple[int, list[Event]]:
        """Open an item that a tool adds without a call; return its output index and the events."""
        out: list[Event] = []
        index = self._add(out, form, fields)
        self._running.add(index)
        return index, out

    def advance(self, index: int, stage: Stage) -> list[Event]:
        """Report the server's progress with an open item; a repeated run of a call does not report a stage twice."""
        if (index, stage) in self._emitted:
            return []
        item = self._output.items[index]
        made = FORMS[item["type"]].stages.get(stage)
        return [made(self._output.next(), item["id"], index)] if made else []

    def conclude(self, index: int, fields: Json, *, failed: bool = False) -> list[Event]:
        """Close an item whose tool has ended, with its results."""
        if index not in self._running:
            return []  # its tool has already closed it
        self._running.discard(index)
        item = self._output.items[index] | fields
        form = FORMS[item["type"]]
        out = self._details(form, item, index) if form.details and form.details.key in fields else []
        out += self.advance(index, "failed" if failed else "completed")
        self._output.done(out, index, item | form.ended(form.failed if failed else "completed"))
        return out

    def show(self, form: ItemForm, fields: Json) -> list[Event]:
        """Add a complete item."""
        index, out = self.begin(form, fields)
        return out + self.conclude(index, fields)

    def _details(self, form: ItemForm, item: Json, index: int) -> list[Event]:
        made = form.details.events(self._output.numbered, item, index) if form.details else []
        self._output.numbered += len(made)
        return made

    def make(self, kind: CallKind, name: str, arguments: str) -> list[Event]:
        """Make a call without streaming it: the model wrote it in an earlier response."""
        out: list[Event] = []
        call = _OpenCall(name)
        self._begin(out, call, kind)
        self._append(out, call, arguments)
        self._close(out, call, "completed")
        return out

    def _queue(self, key: Hashable) -> _OpenCall:
        self._writing[key] = call = _OpenCall()
        self._line.append(call)
        return call

    def _take_turns(self, out: list[Event]) -> None:
        """Close complete calls in front of others, and emit what the next one held back."""
        while len(self._line) > 1 and self._line[0].is_whole():
            self._finish_first(out)
            first = self._line[0]
            if first.name and first.fragments:
                self._open(out, first)

    def _finish_first(self, out: list[Event]) -> None:
        call = self._line.popleft()
        self._close(out, call, "completed")
        call.closed = True

    def _open(self, out: list[Event], call: _OpenCall) -> None:
        self._begin(out, call, self._kind_of(call.name))

    def _begin(self, out: list[Event], call: _OpenCall, kind: CallKind | None) -> None:
        call.opened = True
        call.kind = kind
        if not call.call_id or call.call_id in self._call_ids:
            call.call_id = new_id("call")
        self._call_ids.add(call.call_id)
        if kind and kind.form.streamed:
            call.index = self._add(out, kind.form, kind.fields(call.name, call.call_id))
            call.decoder = kind.decoder() if kind.decoder else None
        early, call.fragments = call.fragments, []
        for fragment in early:
            self._append(out, call, fragment)

    def _add(self, out: list[Event], form: ItemForm, fields: Json) -> int:
        index = self._output.add(out, form.id_prefix, form.blank({"type": form.type, **form.ended(""), **fields}))
        out += self.advance(index, "in_progress")
        return index

    def _append(self, out: list[Event], call: _OpenCall, arguments: str) -> None:
        call.fragments.append(arguments)
        if call.decoder:
            arguments = call.decoder.feed(arguments)
            call.decoded.append(arguments)
        if arguments and call.kind and call.index is not None:
            self._show(out, call.kind, call.index, arguments)

    def _show(self, out: list[Event], kind: CallKind, index: int, text: str) -> None:
        assert kind.form.streamed
        out.append(kind.form.streamed.delta(self._output.next(), self._output.items[index]["id"], index, text))

    def _close(self, out: list[Event], call: _OpenCall, status: ItemStatus) -> None:
        if not call.opened:
            self._open(out, call)
        if call.kind and call.index is not None:
            self._close_streamed(out, call, call.kind, call.index, status)
        elif call.kind and call.kind.whole:
            self._close_whole(out, call, call.kind, status)
        else:
            self._leave(call)

    def _close_streamed(
        self, out: list[Event], call: _OpenCall, kind: CallKind, index: int, status: ItemStatus
    ) -> None:
        streamed, item = kind.form.streamed, self._output.items[index]
        assert streamed
        if status == "completed":
            self._append_rest(out, call, kind, index)
        text = "".join(call.decoded if call.decoder else call.fragments)
        out.append(streamed.done(self._output.next(), item["id"], index, text))
        if kind.hosted and status == "completed":
            self._output.items[index] = item | {streamed.key: text}
            self._leave(call)
        else:
            self.shown += 1
            self._output.done(out, index, item | kind.form.ended(status) | {streamed.key: text})

    def _append_rest(self, out: list[Event], call: _OpenCall, kind: CallKind, index: int) -> None:
        """Append the rest when the arguments are complete."""
        assert kind.form.streamed
        if call.decoder:
            rest = call.decoder.end()
            call.decoded.append(rest)
        else:
            rest = "" if "".join(call.fragments).strip() else kind.form.streamed.nothing
            call.fragments.append(rest)
        if rest:
            self._show(out, kind, index, rest)

    def _close_whole(self, out: list[Event], call: _OpenCall, kind: CallKind, status: ItemStatus) -> None:
        """Add an item that needs the whole call; an incomplete call adds none."""
        assert kind.whole
        if status == "incomplete":
            return
        fields = kind.whole("".join(call.fragments))
        if fields is None:
            fields = kind.unread
        if fields is not None:
            begun = kind.fields(call.name, call.call_id) | fields
            if not kind.hosted:
                self.shown += 1
                out += self.show(kind.form, begun)
                return
            call.index = self._add(out, kind.form, begun)
            item = self._output.items[call.index] | begun
            out += self._details(kind.form, item, call.index)
            self._output.items[call.index] = item
        self._leave(call)

    def _leave(self, call: _OpenCall) -> None:
        """Pass a complete call to the server."""
        if call.index is not None:
            self._running.add(call.index)
        arguments = "".join(call.fragments) or "{}"
        self.server_calls.append(ServerCall(call.name, call.call_id, arguments, call.index))
