"""Calls that a client runs, and their outputs: which of them belong together in a conversation."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ..core.errors import bad_request
from ..core.exchanges import EXCHANGE
from ..core.shapes import Location, missing
from ..core.types import Json
from .program_calls import mark_in
from .registry import ANSWERED, ANSWERS, JOINABLE, REPLIES

_CALLS: Final = frozenset(reply.to for reply in REPLIES.values() if reply.named_by == "call_id")
"""The types of calls that have items of their own for their outputs."""

_ALSO_ANSWERS: Final = {"function_call_output": ("local_shell_call",)}
"""Types of calls that have outputs of another kind too: Codex answers all calls as functions."""

type _Calls = defaultdict[str, OrderedDict[str, Mapping[str, Any]]]
"""The items of calls by their types and ids, each type oldest first."""


class _OpenCalls:
    """The client-run calls of a conversation that have no output so far."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()
        self._earlier: _Calls = defaultdict(OrderedDict)
        """Those before the newest user message."""
        self._newest: _Calls = defaultdict(OrderedDict)

    def add(self, item: Mapping[str, Any]) -> bool:
        """Add the next item of the conversation; return whether it is no output, or that of an earlier call."""
        kind, call_id = item["type"], item.get("call_id")
        if item.get("role") == "user":
            for each, calls in self._newest.items():
                self._earlier[each].update(calls)
                calls.clear()
        elif call_id is None or item.get("execution") == "server":
            pass
        elif kind in _CALLS:
            self._seen.add((kind, call_id))
            # An item with an exchange was run by this server, which also continues what has no output yet.
            if EXCHANGE not in item and kind in ANSWERS:
                # A model that restarts its numbering in each turn reuses call ids: the later call is then open.
                self._earlier[kind].pop(call_id, None)
                self._newest[kind][call_id] = item
        elif answered := _call_of(kind):
            return self._answer((answered, *_ALSO_ANSWERS.get(kind, ())), call_id)
        return True

    def _answer(self, kinds: Sequence[str], call_id: str) -> bool:
        """Note that a call of one of these types has its output; return whether there is one."""
        for group in (self._newest, self._earlier):
            for kind in kinds:
                group[kind].pop(call_id, None)
        return any((kind, call_id) in self._seen for kind in kinds)

    def oldest(self, kind: str) -> str | None:
        """Return the id of the oldest open call of this type after the newest user message, or else before it."""
        return next(iter(self._newest[kind] or self._earlier[kind]), None)

    def lacking(self, *, interruptible: bool, ended: bool) -> Iterable[tuple[str, str]]:
        """Return types and ids of the calls that lack their outputs."""
        for calls, interrupted in ((self._earlier, interruptible), (self._newest, interruptible and ended)):
            for kind, of_kind in calls.items():
                # A program waits for the outputs of its calls.
                yield from ((kind, each) for each, item in of_kind.items() if not interrupted or mark_in(item))


def _call_of(kind: str) -> str | None:
    """Return the type of the calls whose outputs are items of the type `kind`; None if those are no outputs."""
    reply = REPLIES.get(kind)
    return reply.to if reply and reply.names == "call_id" else None


def check_call_pairs(items: Iterable[Mapping[str, Any]], *, interruptible: bool = False, ended: bool = False) -> None:
    """Raise a 400 unless every client-run call has an output after it, and every output has a call before it.

    Args:
        items: the whole conversation, oldest first: the history and the new input.
        interruptible: whether a call may lack its output if a user's message comes after it.
        ended: whether it is taken to come after the newest call, since no output will.
    """
    calls = _OpenCalls()
    for item in items:
        if not calls.add(item):
            what = str(_call_of(item["type"])).replace("_", " ")
            raise bad_request(f"No tool call found for {what} output with call_id {item['call_id']}.", "input")
    for kind, call_id in calls.lacking(interruptible=interruptible, ended=ended):
        raise bad_request(f"No tool output found for {kind.replace('_', ' ')} {call_id}.", "input")


def with_call_ids(history: Iterable[Json], items: Sequence[Json], param: str = "input") -> Sequence[Json]:
    """Return the items, where each output without a `call_id` has that of the oldest open call of its kind.

    Calls after the newest user message come first.

    Args:
        history: the items before them.
        items: the items that a request adds as `param`.

    Raises:
        ApiError: 400, there is no open call for an output.
    """
    if all("call_id" in item for item in items if item["type"] in JOINABLE):
        return items
    calls, joined = _OpenCalls(), list[Json]()
    for item in history:
        calls.add(item)
    for position, item in enumerate(items):
        whole = item
        if item["type"] in JOINABLE and "call_id" not in item:
            call_id = calls.oldest(ANSWERED[item["type"]])
            if call_id is None:
                raise missing(Location(param).index(position).key("call_id"))
            whole = {**item, "call_id": call_id}
        calls.add(whole)
        joined.append(whole)
    return joined
