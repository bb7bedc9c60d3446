"""Deltas that differ only in their number and their text: the JSON around these is encoded once."""

from __future__ import annotations

from typing import Any, Final

from llama_stack_responses.core.json_blocks import dumps
from llama_stack_responses.core.stream.events import Event

_FILLED_IN: Final = {"sequence_number": b"%d", "delta": b"%b"}


def delta_form(event: Event) -> bytes:
    """Return the JSON of an event as a format of its number and of its text as JSON, in this order."""
    return b"{%b}" % b",".join([b"%b:%b" % (literal(dumps(name)), _value(name, event[name])) for name in event])


def literal(data: bytes) -> bytes:
    """Return a format that results in these bytes."""
    return data.replace(b"%", b"%%")


def _value(name: str, value: Any) -> bytes:
    return _FILLED_IN[name] if name in _FILLED_IN else literal(dumps(value))
