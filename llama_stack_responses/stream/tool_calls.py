"""The tool calls of a response: turns fragments into items, events, and calls for the server to run.

This is the part of the assembler that handles calls. A client's call is done when the model has written it. A call that
the server runs stays open until its tool has ended; it is listed in `server_calls`.

Calls are streamed one at a time. If the model server interleaves fragments of several calls, later calls wait until the
arguments of the first are a complete JSON object, or the round ends.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from ..core.ids import new_id
from ..core.types import Json
from ..items.form import ItemForm, Stage
from .call_kinds import FORMS, ArgumentDecoder, CallKind, ServerCall, Whole
from .deltas import Annotation, Delta, Finish, ToolCall
from .events import Event
from .fragments import LARGE_CHARACTERS, Fragments
from .json_object_end import JsonObjectEnd
from .output import OpenText, Output

ItemStatus = Literal["completed", "incomplete"]


@dataclass(slots=True)
class _OpenCall:
    """A call that is being written; its item is added once its name is complete and no other call is open."""

    name: str = ""
    call_id: str = ""
    named: bool = False  # the id is final
    fragments: Fragments = field(default_factory=Fragments)
    opened: bool = False
    kind: CallKind | None = None
    index: int | None = None
    decoder: ArgumentDecoder | None = None
    decoded: Fragments = field(default_factory=Fragments)
    closed: bool = False
    arguments: JsonObjectEnd = field(default_factory=JsonObjectEnd)
    read: tuple[int, Json | None] | None = None
    decoded_until: int = 0

    def is_whole(self) -> bool:
        """Return whether the arguments are complete."""
        self.fragments.keep_pieces()  # `arguments` counts those that it has read
        return bool(self.name) and self.arguments.reached(self.fragments.pieces)

    def is_unprepared(self, whole: Whole | None, *, closes: bool) -> bool:
        """Return whether closing the call takes long unless it is prepared.

        Args:
            whole: reads the arguments.
            closes: whether the call is closed even if its arguments are not complete.
        """
        texts = (self.fragments, self.decoded)
        length = self.fragments.length()
        large = length >= LARGE_CHARACTERS
        unread = large and whole is not None and not self.is_read()
        undecoded = large and self.decoder is not None and self.decoded_until != length
        return (unread or undecoded or any(text.is_unprepared() for text in texts)) and (closes or self.is_whole())

    def is_read(self) -> bool:
        """Return whether `read` has the result for the arguments so far."""
        return self.read is not None and self.read[0] == self.fragments.length()

    def lags(self) -> bool:
        """Return whether much is not prepared yet."""
        return self.fragments.lags() or self.decoded.lags()

    def prepare(self, whole: Whole | None = None) -> None:
        """Do what takes long when a large call closes."""
        self.fragments.join()
        self.decoded.join()
        if self.decoder:
            self.decoded_until = self.fragments.length()
            self.decoder.prepare()
        if whole:
            text = self.fragments.text()
            self.read = len(text), whole(text)


_NOTHING: Final[Set[tuple[int, str]]] = frozenset()


class ToolCalls:
    """The calls of one response.

    Args:
        output: receives their items.
        kind_of: returns how a call of the function with this name appears to the client; None if it is hidden.
        whole_of: returns `whole` of that kind, without accepting a call.
        meant: returns the name of the function that a call's name means.

    Attributes:
        server_calls: complete calls that the server has yet to answer: those of hosted tools, and invalid ones.
        client_calls: how many calls of this round the client has to run.
    """

    __slots__ = (
        "_call_ids",
        "_emitted",
        "_kind_of",
        "_line",
        "_meant",
        "_named",
        "_output",
        "_running",
        "_whole_of",
        "_writing",
        "client_calls",
        "server_calls",
    )

    def __init__(
        self,
        output: Output,
        kind_of: Callable[[str], CallKind | None],
        whole_of: Callable[[str], Whole | None],
        meant: Callable[[str], str],
    ) -> None:
        self.server_calls: list[ServerCall] = []
        self.client_calls = 0
        self._output = output
        self._kind_of = kind_of
        self._whole_of = whole_of
        self._meant = meant
        self._writing: dict[Hashable, _OpenCall] = {}
        self._named: dict[Hashable, str] | None = None
        self._line: list[_OpenCall] = []
        # Used as sets. An empty dict takes a quarter of the memory of an empty set.
        self._running: dict[int, None] = {}
        self._call_ids: dict[str, None] = {}
        self._emitted: Set[tuple[int, str]] = _NOTHING

    def resume(self, added: Iterable[Json], waiting: Sequence[ServerCall], happened: Iterable[Event]) -> None:
        """Continue after other assemblers, given what they added, the unanswered calls, and the events about those."""
        self._emitted = {
            (event["output_index"], event["type"].rpartition(".")[2]) for event in happened if "output_index" in event
        }
        items = [*self._output.items, *added]
        self._call_ids = dict.fromkeys(item["call_id"] for item in items if "call_id" in item)
        self._call_ids |= dict.fromkeys(call.call_id for call in waiting)
        self._running = dict.fromkeys(call.open_index for call in waiting if call.open_index is not None)

    @property
    def being_written(self) -> bool:
        """Whether the model has begun calls in this round."""
        return bool(self._writing)

    def is_new(self, delta: ToolCall) -> bool:
        """Return whether this fragment begins a call."""
        return delta.key not in self._writing

    def id_of(self, key: Hashable, call_id: str) -> str:
        """Return the id of the call with this key, which may not have begun.

        Args:
            call_id: the id that the model server has given it; empty if it has not given one.
        """
        call = self._writing.get(key)
        if call is None and self._named and key in self._named:
            return self._named[key]
        if call and call.named:
            return call.call_id
        named = self._own_id(call.call_id or call_id if call else call_id)
        if call:
            call.call_id, call.named = named, True
        else:
            self._named = self._named or {}
            self._named[key] = named
        return named

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
            self._close_complete(out)
        return out

    def open_text(self, key: Hashable, out: Sequence[Event]) -> OpenText | None:
        """Return the arguments of this call, whose last fragment became these events, if they can be extended."""
        call = self._writing[key]
        if call.closed or call.decoder or len(self._line) != 1 or not out or "delta" not in out[-1]:
            return None
        return OpenText(self._output, call.fragments, out[-1])

    def preparation(self, delta: Delta | None, *, waits: bool = False) -> Callable[[], None] | None:
        """Return the work on a large call that a delta may close, or that `close` closes; None if there is none.

        Args:
            waits: whether other content waits for the end of the first call.
        """
        if not self._line or isinstance(delta, Annotation):
            return None
        first, ends = self._line[0], delta is None or isinstance(delta, Finish)
        if isinstance(delta, ToolCall) and self._writing.get(delta.key) is first:
            if not (waits or len(self._line) > 1):
                return None
            # It may complete the call, which then closes at once.
            if first.lags():
                return first.prepare
        calls = self._line if ends else (first,)
        for call in calls:
            whole = self._whole_of(call.name)
            if call.is_unprepared(whole, closes=ends):
                return partial(call.prepare, whole)
        return None

    def pause(self, out: list[Event]) -> bool:
        """Close the complete calls, since other content follows; return False if one is incomplete."""
        self._close_complete(out)
        if self._line and self._line[0].is_whole():
            self._finish_first(out)
        return not self._line

    def close(self, status: ItemStatus) -> list[Event]:
        """Close the calls that are being written, and with `incomplete` also those that run."""
        out: list[Event] = []
        line, self._line = self._line, []
        self._writing, self._named = {}, None
        for call in line:
            if call.name or call.fragments.pieces:
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
        self._running[index] = None
        return index, out

    def advance(self, index: int, stage: Stage) -> list[Event]:
        """Report the server's progress with an open item; a repeated run of a call does not report a stage twice."""
        if (index, stage) in self._emitted:
            return []
        item = self._output.items[index]
        constructor = FORMS[item["type"]].stages.get(stage)
        return [constructor(self._output.next(), item["id"], index)] if constructor else []

    def show_partial(self, index: int, number: int, fields: Json) -> list[Event]:
        """Show what an open call has not finished; a repeated run of the call shows nothing again."""
        item = self._output.items[index]
        partial = FORMS[item["type"]].partial
        if partial is None or (index, partial.name) in self._emitted:
            return []
        return [partial.event(self._output.next(), item["id"], index, number, fields)]

    def conclude(self, index: int, fields: Json, *, failed: bool = False) -> list[Event]:
        """Close an item whose tool has ended, with its results."""
        if index not in self._running:
            return []  # its tool has already closed it
        del self._running[index]
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
        events = form.details.events(self._output.numbered, item, index) if form.details else []
        self._output.numbered += len(events)
        return events

    def make(self, kind: CallKind, name: str, arguments: str) -> list[Event]:
        """Make a call without streaming it: the model wrote it in an earlier response, or a program makes it."""
        out: list[Event] = []
        call = _OpenCall(name)
        self._begin(out, call, kind)
        self._append(out, call, arguments)
        self._close(out, call, "completed")
        return out

    def _own_id(self, call_id: str) -> str:
        """Return the id that the model server gave a call, or another one if that is not the only one with it."""
        if not call_id or call_id in self._call_ids:
            call_id = new_id("call")
        self._call_ids[call_id] = None
        return call_id

    def _queue(self, key: Hashable) -> _OpenCall:
        self._writing[key] = call = _OpenCall()
        if self._named and key in self._named:
            call.call_id, call.named = self._named.pop(key), True
        self._line.append(call)
        return call

    def _close_complete(self, out: list[Event]) -> None:
        """Close complete calls in front of others, and emit what the next one held back."""
        while len(self._line) > 1 and self._line[0].is_whole():
            self._finish_first(out)
            first = self._line[0]
            if first.name and first.fragments.pieces:
                self._open(out, first)

    def _finish_first(self, out: list[Event]) -> None:
        call = self._line.pop(0)
        self._close(out, call, "completed")
        call.closed = True

    def _open(self, out: list[Event], call: _OpenCall) -> None:
        call.name = self._meant(call.name)
        self._begin(out, call, self._kind_of(call.name))

    def _begin(self, out: list[Event], call: _OpenCall, kind: CallKind | None) -> None:
        call.opened = True
        call.kind = kind
        if not call.named:
            call.call_id, call.named = self._own_id(call.call_id), True
        if kind and kind.form.streamed:
            call.index = self._add(out, kind.form, kind.fields(call.name, call.call_id))
            call.decoder = kind.decoder() if kind.decoder else None
        early, call.fragments = call.fragments, Fragments()
        for fragment in early.pieces:
            self._append(out, call, fragment)
        call.fragments.keep_pieces()

    def _add(self, out: list[Event], form: ItemForm, fields: Json) -> int:
        index = self._output.add(out, form.id_prefix, form.blank({"type": form.type, **form.ended(""), **fields}))
        out += self.advance(index, "in_progress")
        return index

    def _append(self, out: list[Event], call: _OpenCall, arguments: str) -> None:
        call.fragments.pieces.append(arguments)
        if call.decoder:
            arguments = call.decoder.feed(arguments)
            call.decoded.pieces.append(arguments)
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
        text = (call.decoded if call.decoder else call.fragments).text()
        out.append(streamed.done(self._output.next(), item, index, text))
        if kind.hosted and status == "completed":
            self._output.items[index] = item | {streamed.key: text}
            self._leave(call)
        else:
            self.client_calls += 1
            self._output.done(out, index, item | kind.form.ended(status) | {streamed.key: text})

    def _append_rest(self, out: list[Event], call: _OpenCall, kind: CallKind, index: int) -> None:
        """Append the rest when the arguments are complete."""
        assert kind.form.streamed
        if call.decoder:
            rest = call.decoder.end()
            call.decoded.pieces.append(rest)
        else:
            rest = "" if call.fragments.text().strip() else kind.form.streamed.nothing
        if rest:
            if not call.decoder:
                call.fragments.pieces.append(rest)
            self._show(out, kind, index, rest)

    def _close_whole(self, out: list[Event], call: _OpenCall, kind: CallKind, status: ItemStatus) -> None:
        """Add an item that needs the whole call; an incomplete call adds none."""
        assert kind.whole
        if status == "incomplete":
            return
        fields = call.read[1] if call.read and call.is_read() else kind.whole(call.fragments.text())
        if fields is None:
            fields = kind.unread
        if fields is not None:
            begun = kind.fields(call.name, call.call_id) | fields
            if not kind.hosted:
                self.client_calls += 1
                out += self.show(kind.form, begun)
                return
            call.index = self._add(out, kind.form, begun)
            if kind.form.closed:
                self._output.done(out, call.index, self._output.items[call.index])
                self._leave(call, closed=True)
                return
            item = self._output.items[call.index] | begun
            out += self._details(kind.form, item, call.index)
            self._output.items[call.index] = item
        self._leave(call)

    def _leave(self, call: _OpenCall, *, closed: bool = False) -> None:
        """Pass a complete call to the server; `closed` if its item is complete too."""
        if call.index is not None and not closed:
            self._running[call.index] = None
        arguments = call.fragments.text() or "{}"
        self.server_calls.append(ServerCall(call.name, call.call_id, arguments, call.index, closed=closed))
