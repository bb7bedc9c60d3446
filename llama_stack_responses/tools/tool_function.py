"""A function that the model can call, and how the server runs a call of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

from ..concurrency.offloading import in_thread_if_large
from ..core.decoded_arguments import decoded_arguments
from ..core.errors import ApiError
from ..core.shapes import Check, Location
from ..core.types import Json
from ..items.form import ItemForm, Stage
from ..items.kinds.mcp import MCP_APPROVAL_REQUEST
from ..items.tool_usage import ImageUsage
from ..stream.call_kinds import CallKind, ServerCall

Output = str | list[Json]
"""A tool's output for the model: text, or content parts (`input_text`, `input_image`, `input_file`)."""


Callers = frozenset[str]
"""What may call a function: `direct` is the model, `programmatic` a program of the model."""
DIRECT: Final = frozenset({"direct"})


def callers_of(declared: Json) -> Callers:
    """Return the `allowed_callers` of an entry of `tools`."""
    return frozenset(declared.get("allowed_callers") or DIRECT)


class ToolError(Exception):
    """A failed call; the message is for the model.

    Args:
        message: text for the model.
        fields: fields of the call's item.
    """

    def __init__(self, message: str, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.fields = dict(fields or {})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a call.

    Attributes:
        output: the output for the model.
        fields: the final fields of the call's item.
        failed: whether what the tool ran failed, although the call itself is completed: code that raised an error.
        image_usage: the tokens of a generated image; None if they are unknown.
    """

    output: Output
    fields: Mapping[str, Any] = field(default_factory=dict)
    failed: bool = False
    image_usage: ImageUsage | None = None


class ItemReporter(Protocol):
    """A reporter of a tool's progress to the client, as output items."""

    def advance(self, index: int, stage: Stage) -> None:
        """Report the stage of an open item."""
        ...

    def show_partial(self, index: int, number: int, fields: Json, size: int) -> None:
        """Show what an open item has not finished; nothing if there is no room.

        Args:
            number: the number of such an event of the item, from 0.
            fields: fields of the item.
            size: their size in bytes.
        """
        ...

    def hold(self, size: int) -> None:
        """Count bytes that a tool keeps until the response ends.

        Raises:
            ApiError: 429 or 503, the owner or all owners hold too much.
        """
        ...

    def make(self, function: Function, arguments: str, program: str) -> ServerCall | None:
        """Make a call of a program; return it if the server runs it, and None if the client does.

        Raises:
            ToolError: no more tools may be called.
        """
        ...

    async def answer_calls(self, calls: Sequence[ServerCall]) -> None:
        """Record that calls of a program begin, run them at the same time, and close their items."""
        ...

    def output(self) -> Sequence[Json]:
        """Return the items of the response."""
        ...

    def begin(self, form: ItemForm, fields: Json) -> int:
        """Open an item of the tool's own; return its index in the output."""
        ...

    def conclude(self, index: int, fields: Json, *, failed: bool = False) -> None:
        """Close an item opened by `begin`."""
        ...

    def show(self, form: ItemForm, fields: Json) -> None:
        """Add a complete item.

        Raises:
            ToolError: the results of the response are too large together.
        """
        ...


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call for a tool to run.

    Attributes:
        call: the model's call.
        item: the call's item in its current state.
        reporter: reports progress to the client.
    """

    call: ServerCall
    item: Json
    reporter: ItemReporter

    def advance(self, stage: Stage) -> None:
        """Report the stage of the call."""
        assert self.call.index is not None
        self.reporter.advance(self.call.index, stage)

    def show_partial(self, number: int, fields: Json, size: int) -> None:
        """Show what the call has not finished, as `ItemReporter.show_partial`."""
        assert self.call.index is not None
        self.reporter.show_partial(self.call.index, number, fields, size)

    async def arguments(self) -> Json:
        """Return the arguments, which must be a JSON object; large ones are decoded in a thread.

        Raises:
            ToolError: they are not.
        """
        try:
            value = await in_thread_if_large(partial(decoded_arguments, self.call.arguments), self.call.arguments)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ToolError("The arguments of this call are not a JSON object. Call again with valid JSON.")
        return value


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the model can call.

    Attributes:
        chat: its entry in a chat request's `tools`, of type `function` or `custom`.
        kind: how its calls appear to the client.
        run: runs a call on the server and raises `ToolError` if it fails; None if the client runs it. It returns None
            if the call waits for the client.
        repeatable: whether a call that may have run may be repeated.
        origin: the namespace (if any) and name that the client uses; None if the client did not name it.
        deferred: whether it is hidden from the model until a tool search, if there is one.
        callers: what may call it: the model, programs of the model, or both.
        output_schema: the JSON schema of the value that its output encodes, for programs; None for text.
        composite: whether its calls make calls of other functions, each of which has its own time limit.
    """

    chat: Json
    kind: CallKind
    run: Callable[[Invocation], Awaitable[Outcome | None]] | None = None
    repeatable: bool = False
    origin: tuple[str | None, str] | None = None
    deferred: bool = False
    callers: Callers = DIRECT
    output_schema: Json | None = None
    composite: bool = False

    @property
    def is_direct(self) -> bool:
        """Whether the model may call it."""
        return "direct" in self.callers

    @property
    def is_programmatic(self) -> bool:
        """Whether a program may call it. A call that needs the client's approval is no program's."""
        return "programmatic" in self.callers and self.kind.form is not MCP_APPROVAL_REQUEST

    @property
    def name(self) -> str:
        """The function name for the model."""
        return str(self.chat[self.chat["type"]]["name"])

    def renamed(self, name: str) -> Function:
        """Return the function under another name."""
        form = self.chat["type"]
        return replace(self, chat={**self.chat, form: {**self.chat[form], "name": name}})


def chat_function(name: str, description: str | None, parameters: Json | None, **more: Any) -> Json:
    """Create an entry of a chat request's `tools`."""
    function: Json = {"name": name, "parameters": parameters or {"type": "object", "properties": {}}}
    if description is not None:
        function["description"] = description
    return {"type": "function", "function": function | more}


def validated_arguments(arguments: str, shape: Check) -> Any | None:
    """Decode arguments and validate them with `shape`; None if they are invalid."""
    try:
        return shape(decoded_arguments(arguments), Location(""))
    except (ValueError, ApiError):
        return None
