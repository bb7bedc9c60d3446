"""The items of tool calls: their form in the output and in events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from ..core.types import Json
from ..items.form import ItemForm
from ..items.kinds.custom_tool_call import CUSTOM_INPUT, CUSTOM_TOOL_CALL
from ..items.kinds.function_call import FUNCTION_CALL
from ..items.program_calls import caller, mark_of
from ..items.registry import ITEM_KINDS
from .argument_text import ArgumentText


class ArgumentDecoder(Protocol):
    """Incremental decoder from a call's arguments to the text of an item's streamed field."""

    def feed(self, fragment: str) -> str:
        """Return the text that this fragment adds, often nothing."""
        ...

    def prepare(self) -> None:
        """Do what takes long in `end`; more fragments may follow."""
        ...

    def end(self) -> str:
        """Return the rest of the text when the arguments have ended."""
        ...


def no_fields(_: str, __: str) -> Json:
    """Return no initial fields of a `CallKind`: the item gets them with the call's arguments."""
    return {}


Whole = Callable[[str], Json | None]
"""Returns the fields of an item, given the call's arguments; None if they are invalid."""


@dataclass(frozen=True, slots=True)
class CallKind:
    """How the calls of one function appear to the client, and whether the server runs them.

    Attributes:
        form: the form of their items.
        fields: `(name, call_id) -> fields`: the item's initial fields except id, type and status.
        decoder: makes the decoder of the streamed field; without one, the field holds the arguments as they come.
        whole: returns the fields of an item without a streamed field, given the call's arguments; None if they are
            invalid. The model then gets an error, and the client does not see the call, unless there is `unread`.
        unread: the fields of the failed item of a hosted call with invalid arguments.
        hosted: whether the server runs the calls.
    """

    form: ItemForm
    fields: Callable[[str, str], Json]
    decoder: Callable[[], ArgumentDecoder] | None = None
    whole: Whole | None = None
    unread: Json | None = None
    hosted: bool = False


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A complete call that the server answers, by running the tool or with an error.

    Attributes:
        index: the output index of its item; None if the client does not see the call, or an earlier response has it.
        program: the `call_id` of the program that made the call; None for a call of the model.
        closed: whether its item is complete already: that of a program, since the items of its calls follow it.
    """

    name: str
    call_id: str
    arguments: str
    index: int | None = None
    program: str | None = None
    closed: bool = False

    @property
    def open_index(self) -> int | None:
        """The output index of its item if that stays open until the call is answered."""
        return None if self.closed else self.index

    @property
    def refused(self) -> bool:
        """Whether it is answered with an error, and the client does not see it."""
        return self.index is None and not self.closed


FORMS: Final[Mapping[str, ItemForm]] = {
    name: kind.form for name, kind in ITEM_KINDS.items() if isinstance(kind.form, ItemForm)
}
"""Forms of items that tools make, by type."""


def named(name: str, call_id: str) -> Json:
    """Return the fields of a call whose function has the same name for the client and the model."""
    return {"call_id": call_id, "name": name}


def by_call_id(_: str, call_id: str) -> Json:
    """Return the fields of a call of a tool without a name."""
    return {"call_id": call_id}


def in_namespace(kind: CallKind, namespace: str, name: str) -> CallKind:
    """Return the kind for a function that the client declared with this name in this namespace."""
    return replace(kind, fields=lambda _, call_id: {"call_id": call_id, "name": name, "namespace": namespace})


def made_by(kind: CallKind, program: str) -> CallKind:
    """Return the kind for a call that the program with this `call_id` makes."""
    if not kind.form.has_caller:
        return replace(kind, form=replace(kind.form, id_prefix=f"{kind.form.id_prefix}_{mark_of(program)}"))
    return replace(kind, fields=lambda name, call_id: kind.fields(name, call_id) | {"caller": caller(program)})


FUNCTION: Final = CallKind(FUNCTION_CALL, named)
"""A call of a client's function."""
CUSTOM: Final = CallKind(CUSTOM_TOOL_CALL, named, decoder=partial(ArgumentText, CUSTOM_INPUT))
"""A call of a client's tool that takes free text."""
