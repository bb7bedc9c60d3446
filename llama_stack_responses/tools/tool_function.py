"""A function that the model can call, and how the server runs a call of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from ..concurrency.offloading import computed
from ..core.arguments import decoded_arguments
from ..core.stream.calls import CallKind, ItemForm, ServerCall, Stage
from ..core.types import Json

Output = str | list[Json]
"""A tool's output for the model: text, or content parts (`input_text`, `input_image`, `input_file`)."""


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
    """

    output: Output
    fields: Mapping[str, Any] = field(default_factory=dict)
    failed: bool = False


class ItemReporter(Protocol):
    """A reporter of a tool's progress to the client, as output items."""

    def advance(self, index: int, stage: Stage) -> None:
        """Report the stage of an open item."""
        ...

    def show_partial_image(self, index: int, number: int, image: Json) -> None:
        """Show an image that an open item has not finished, with the fields of the item; none if there is no room."""
        ...

    def hold(self, size: int) -> None:
        """Count bytes that a tool keeps until the response ends.

        Raises:
            ApiError: 429 or 503, the owner or all owners hold too much.
        """
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

    def show_partial_image(self, number: int, image: Json) -> None:
        """Show an image that the call has not finished, with the fields of its item."""
        assert self.call.index is not None
        self.reporter.show_partial_image(self.call.index, number, image)

    async def arguments(self) -> Json:
        """Return the arguments, which must be a JSON object; large ones are decoded in a thread.

        Raises:
            ToolError: they are not.
        """
        try:
            value = await computed(partial(decoded_arguments, self.call.arguments), self.call.arguments)
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
        run: runs a call on the server and raises `ToolError` if it fails; None if the client runs it.
        repeatable: whether a call that may have run may be repeated.
        origin: the namespace (if any) and name that the client uses; None if the client did not name it.
        deferred: whether it is hidden from the model until a tool search, if there is one.
    """

    chat: Json
    kind: CallKind
    run: Callable[[Invocation], Awaitable[Outcome]] | None = None
    repeatable: bool = False
    origin: tuple[str | None, str] | None = None
    deferred: bool = False

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
