"""The items of tool calls: their form in the output and in events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, Protocol

from ..program_calls import caller, mark_of
from ..schema.image_tool import IMAGE_CALL
from ..schema.program_items import PROGRAM, PROGRAM_OUTPUT
from ..types import Json
from . import events, shell
from .argument_text import ArgumentText
from .events import CallDoneEvent, CallTextEvent, Event, StageEvent

CUSTOM_INPUT: Final = "input"
"""The only argument of a custom tool, which the model sees as a function."""
_INTERNAL_ERROR: Final = -32603
"""JSON-RPC's code for an internal error."""

Stage = Literal["in_progress", "searching", "interpreting", "generating", "compacting", "completed", "failed"]


@dataclass(frozen=True, slots=True)
class Streamed:
    """The field of an item that the model streams.

    Attributes:
        key: its name.
        nothing: its value if the model streamed nothing.
    """

    key: str
    nothing: str
    delta: CallTextEvent
    done: CallDoneEvent


@dataclass(frozen=True, slots=True)
class Details:
    """A field that is sent in parts, which may have their own events.

    Attributes:
        key: its name.
        blank: returns its value before those events, given its final value.
        events: `(sequence_number, item, output_index) -> events`, given the final item.
    """

    key: str
    blank: Callable[[Any], Any]
    events: Callable[[int, Json, int], list[Event]]


@dataclass(frozen=True, slots=True)
class ItemForm:
    """One type of item that a tool makes.

    Attributes:
        type: the item's `type`.
        id_prefix: the prefix of the item's id.
        streamed: the field that the model streams; without one, the item is added when its call is complete.
        stages: the events of a call that the server runs.
        results: the fields that are known at the end, with their values before that.
        late: the fields that are absent before the end.
        details: the field that is sent in parts.
        has_status: whether the item has a `status`.
        failed: the status of a failed call.
        cut: further fields of an incomplete item.
        failure: returns the fields of an item whose call failed on this server, given the message for the model.
        has_caller: whether an item has the `caller` of a program's call; otherwise its id has the program's mark.
        closed: whether the item of a call that the server runs is complete before the call is answered.
    """

    type: str
    id_prefix: str
    streamed: Streamed | None = None
    stages: Mapping[Stage, StageEvent] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    late: Collection[str] = ()
    details: Details | None = None
    has_status: bool = True
    failed: str = "failed"
    cut: Mapping[str, Any] = field(default_factory=dict)
    failure: Callable[[str], Json] | None = None
    has_caller: bool = True
    closed: bool = False

    def blank(self, item: Json) -> Json:
        """Return the item as it was when it was added, without what is known by now."""
        begun = {**item, **self.ended("in_progress"), **self.results}
        for key in self.late:
            begun.pop(key, None)
        if self.streamed:
            begun[self.streamed.key] = ""
        if self.details and self.details.key in begun:
            begun[self.details.key] = self.details.blank(begun[self.details.key])
        return begun

    def ended(self, status: str) -> Json:
        """Return the fields for this status."""
        cut = self.cut if status == "incomplete" else {}
        return {"status": status, **cut} if self.has_status else {**cut}


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


def _without_sources(action: Json) -> Json:
    """Return the action of a search before its results are known."""
    return {name: value for name, value in action.items() if name != "sources"}


def _no_events(_: int, __: Json, ___: int) -> list[Event]:
    return []


FUNCTION_CALL: Final = ItemForm(
    "function_call",
    "fc",
    Streamed("arguments", "{}", events.function_call_arguments_delta, events.function_call_arguments_done),
)
CUSTOM_TOOL_CALL: Final = ItemForm(
    "custom_tool_call",
    "ctc",
    Streamed("input", "", events.custom_tool_call_input_delta, events.custom_tool_call_input_done),
)


def _protocol_error(message: str) -> Json:
    return {"error": {"type": "mcp_protocol_error", "code": _INTERNAL_ERROR, "message": message}}


MCP_CALL: Final = ItemForm(
    "mcp_call",
    "mcp",
    Streamed("arguments", "{}", events.mcp_call_arguments_delta, events.mcp_call_arguments_done),
    stages={
        "in_progress": events.mcp_call_in_progress,
        "completed": events.mcp_call_completed,
        "failed": events.mcp_call_failed,
    },
    results={"output": None, "error": None},
    failure=_protocol_error,
    has_caller=False,
)
MCP_LIST_TOOLS: Final = ItemForm(
    "mcp_list_tools",
    "mcpl",
    stages={
        "in_progress": events.mcp_list_tools_in_progress,
        "completed": events.mcp_list_tools_completed,
        "failed": events.mcp_list_tools_failed,
    },
    results={"tools": [], "error": None},
    has_status=False,
    cut={"error": "The connection ended before the server's answer was complete."},
)
MCP_APPROVAL_REQUEST: Final = ItemForm("mcp_approval_request", "mcpr", has_status=False)
WEB_SEARCH_CALL: Final = ItemForm(
    "web_search_call",
    "ws",
    stages={
        "in_progress": events.web_search_call_in_progress,
        "searching": events.web_search_call_searching,
        "completed": events.web_search_call_completed,
    },
    late=("results",),
    details=Details("action", _without_sources, _no_events),
)
FILE_SEARCH_CALL: Final = ItemForm(
    "file_search_call",
    "fs",
    stages={
        "in_progress": events.file_search_call_in_progress,
        "searching": events.file_search_call_searching,
        "completed": events.file_search_call_completed,
    },
    results={"results": None},
)
CODE_INTERPRETER_CALL: Final = ItemForm(
    "code_interpreter_call",
    "ci",
    Streamed("code", "", events.code_interpreter_call_code_delta, events.code_interpreter_call_code_done),
    stages={
        "in_progress": events.code_interpreter_call_in_progress,
        "interpreting": events.code_interpreter_call_interpreting,
        "completed": events.code_interpreter_call_completed,
    },
    results={"outputs": None},
    has_caller=False,
)
IMAGE_GENERATION_CALL: Final = ItemForm(
    IMAGE_CALL,
    "ig",
    stages={
        "in_progress": events.image_generation_call_in_progress,
        "generating": events.image_generation_call_generating,
        "completed": events.image_generation_call_completed,
    },
    results={"result": None},
    late=("action", "error", "revised_prompt", *events.IMAGE_SETTINGS),
    cut={"status": "failed"},  # its types know no incomplete call
)
LOCAL_SHELL_CALL: Final = ItemForm("local_shell_call", "lsh")
SHELL_CALL: Final = ItemForm(
    "shell_call",
    "sh",
    details=Details("action", shell.without_commands, shell.command_events),
    failed="incomplete",
)
SHELL_CALL_OUTPUT: Final = ItemForm(
    "shell_call_output", "sho", details=Details("output", shell.nothing_printed, shell.printed_events)
)
APPLY_PATCH_CALL: Final = ItemForm("apply_patch_call", "apc")
COMPUTER_CALL: Final = ItemForm("computer_call", "cu")
PROGRAM_FORM: Final = ItemForm(PROGRAM, "prog", has_status=False, closed=True)
PROGRAM_OUTPUT_FORM: Final = ItemForm(PROGRAM_OUTPUT, "progo", has_status=False)
TOOL_SEARCH_CALL: Final = ItemForm("tool_search_call", "tsc")
TOOL_SEARCH_OUTPUT: Final = ItemForm("tool_search_output", "tso")
COMPACTION: Final = ItemForm(
    "compaction",
    "cmp",
    stages={"compacting": events.compaction_compacting},
    results={"encrypted_content": ""},
    has_status=False,
)
FORMS: Final[Mapping[str, ItemForm]] = {
    form.type: form
    for form in (
        FUNCTION_CALL,
        CUSTOM_TOOL_CALL,
        MCP_CALL,
        MCP_LIST_TOOLS,
        MCP_APPROVAL_REQUEST,
        WEB_SEARCH_CALL,
        FILE_SEARCH_CALL,
        CODE_INTERPRETER_CALL,
        IMAGE_GENERATION_CALL,
        LOCAL_SHELL_CALL,
        SHELL_CALL,
        SHELL_CALL_OUTPUT,
        APPLY_PATCH_CALL,
        COMPUTER_CALL,
        PROGRAM_FORM,
        PROGRAM_OUTPUT_FORM,
        TOOL_SEARCH_CALL,
        TOOL_SEARCH_OUTPUT,
        COMPACTION,
    )
}
"""Forms by type."""


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
