"""The kinds of tool calls that go to the client: how each is spelled in an item and in events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import events
from .events import Event


@dataclass(frozen=True, slots=True)
class CallKind:
    """One kind of tool call.

    Attributes:
        type: the item's `type`.
        id_prefix: what the item's id begins with.
        key: the item's field that the model streams.
        nothing: what that field holds when the model streamed nothing.
        delta, done: `(sequence_number, item_id, output_index, text) -> event`.
    """

    type: str
    id_prefix: str
    key: str
    nothing: str
    delta: Callable[[int, str, int, str], Event]
    done: Callable[[int, str, int, str], Event]


FUNCTION_CALL = CallKind(
    "function_call", "fc", "arguments", "{}", events.function_call_arguments_delta, events.function_call_arguments_done
)
CALL_KINDS = {kind.type: kind for kind in (FUNCTION_CALL,)}


@dataclass(frozen=True, slots=True)
class HiddenCall:
    """A finished call that the client does not see: the loop answers it to the model."""

    name: str
    call_id: str
    arguments: str
