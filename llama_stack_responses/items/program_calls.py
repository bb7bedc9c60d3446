"""The calls of programs that the model writes, as the items of a conversation record them.

A program that waits for the client is continued by a later request: it runs anew from its start, with the outputs of
its calls from the items. The record of a program is therefore its item and the items of its calls, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, Final

from ..core.exchanges import EXCHANGE
from ..core.program_names import PROGRAM, PROGRAM_OUTPUT
from ..core.types import Json
from .registry import ANSWERED

NOT_CONTINUED: Final = "(The program was not continued.)"
"""What the model sees of a program that waits for the client in a request without the tool."""

_MARKED: Final = re.compile("[a-z]+_(p[0-9a-f]{12})_[0-9a-f]{24}")
_VERSION: Final = "p1"
"""The version of the runtime: a program is continued by the version that began it."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a program needs to run the same way again, which clients send back unread.

    Attributes:
        started_ms: when the program began, in milliseconds since the epoch.
        digest: a digest of its code; it seeds the program's random numbers.
    """

    started_ms: int
    digest: str

    def __str__(self) -> str:
        return f"{_VERSION}-{self.started_ms}-{self.digest}"


def fingerprint(code: str, started_ms: int) -> Fingerprint:
    """Return the fingerprint of a program that begins now."""
    digest = sha256(f"{_VERSION}\0{started_ms}\0{code}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return Fingerprint(started_ms, digest)


def opened_fingerprint(text: str, code: str) -> Fingerprint | None:
    """Return the fingerprint that an item has; None unless this server made it for this code."""
    version, _, rest = text.partition("-")
    started, _, _ = rest.partition("-")
    if version != _VERSION or not (started.isascii() and started.isdecimal() and len(started) <= 16):
        return None
    made = fingerprint(code, int(started))
    return made if str(made) == text else None


@dataclass(slots=True)
class ProgramRecord:
    """A program, and its calls so far.

    Attributes:
        item: its item.
        calls: the items of its calls, in the order in which it made them.
        outputs: the outputs of the calls that have items of their own, by `call_id`.
        continues: whether calls were answered since the last one that was cut off. A program whose response was
            cancelled while a hosted call ran does not go on.
    """

    item: Json
    calls: list[Json] = field(default_factory=list)
    outputs: dict[str, Json] = field(default_factory=dict)
    continues: bool = False

    def add_call(self, item: Json) -> None:
        """Add the item of a call."""
        self.calls.append(item)
        if item.get("status") == "incomplete":
            self.continues = False

    def add_output(self, item: Json) -> None:
        """Add the output of a call."""
        self.outputs[item["call_id"]] = item
        self.continues = True


def caller(program: str) -> Json:
    """Return the `caller` of an item that belongs to a call of the program with this `call_id`."""
    return {"type": "program", "caller_id": program}


def mark_of(program: str) -> str:
    """Return the mark of the program with this `call_id`.

    OpenAI's types of some calls have no `caller`: the ids of their items have the mark between prefix and random bits.
    """
    return f"p{sha256(program.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def mark_in(item: Mapping[str, Any]) -> str | None:
    """Return the mark of the program that made the item's call; None for a call of the model."""
    made_by = item.get("caller")
    if isinstance(made_by, dict) and "caller_id" in made_by:
        return mark_of(str(made_by["caller_id"]))
    marked = _MARKED.fullmatch(str(item.get("id", "")))
    return marked[1] if marked else None


class ProgramCalls:
    """Which items of a conversation belong to the calls of programs, and which programs have no output.

    Args:
        items: the conversation, oldest first, also with calls and outputs as the model sees them.
    """

    def __init__(self, items: Sequence[Json]) -> None:
        self._items = items
        self._call_ids = set[str]()

    @cached_property
    def _outputs(self) -> frozenset[str]:
        """The `call_id` of all outputs: few conversations have a program that asks for them."""
        kinds = (PROGRAM_OUTPUT, "function_call_output")
        return frozenset(item["call_id"] for item in self._items if item["type"] in kinds)

    def include(self, item: Json) -> bool:
        """Return whether the item belongs to a call of a program. Ask for each item, in their order."""
        call_id = item.get("call_id")
        if mark_in(item) is not None:
            if call_id is not None:
                self._call_ids.add(call_id)
            return True
        if item["type"] in ANSWERED:
            # Not every client sends the `caller` back.
            return call_id in self._call_ids
        # A model that restarts its numbering in each turn reuses call ids.
        self._call_ids.discard(call_id or "")
        return False

    def is_program(self, item: Json) -> bool:
        """Return whether the item is a program."""
        return bool(item["type"] == PROGRAM)

    def waits(self, item: Json) -> bool:
        """Return whether the item is a program without an output."""
        return item["type"] == PROGRAM and item["call_id"] not in self._outputs


def unfinished_programs(items: Iterable[Json]) -> Mapping[str, ProgramRecord]:
    """Return the programs of a conversation that have not ended, by their `call_id`.

    Args:
        items: the conversation, oldest first, with the output so far.
    """
    records: dict[str, ProgramRecord] = {}
    marked: dict[str, ProgramRecord] = {}
    callers: dict[str, ProgramRecord] = {}
    for item in items:
        kind, call_id = item["type"], item.get("call_id", "")
        if kind == PROGRAM:
            # A model that restarts its numbering in each turn reuses call ids.
            records.pop(call_id, None)
            if EXCHANGE not in item:
                marked[mark_of(call_id)] = records[call_id] = ProgramRecord(item)
        elif kind == PROGRAM_OUTPUT:
            records.pop(call_id, None)
        elif kind in ANSWERED:
            # Not every client sends the `caller` back.
            if record := callers.get(call_id):
                record.add_output(item)
        elif record := marked.get(mark_in(item) or ""):
            record.add_call(item)
            callers[call_id] = record
    return records
