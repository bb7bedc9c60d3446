"""What the loop needs of a tool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import orjson

from llama_stack_responses.core.stream.calls import CallKind, ItemForm, ServerCall, Stage
from llama_stack_responses.core.stream.citing import Citation

Json = dict[str, Any]
Output = str | list[Json]
"""What the model is told of a call: text, or content parts (`input_text`, `input_image`, `input_file`)."""


class ToolError(Exception):
    """A call that did not work out; the message is for the model.

    Args:
        message: what the model is told.
        fields: what the call's item says of it.
    """

    def __init__(self, message: str, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.fields = dict(fields or {})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call.

    Attributes:
        output: what the model is told.
        fields: what the call's item says at its end.
    """

    output: Output
    fields: Mapping[str, Any] = field(default_factory=dict)


class Stagehand(Protocol):
    """Shows the client what a tool does."""

    def advance(self, index: int, stage: Stage) -> None:
        """Says how far an open item is."""
        ...

    def begin(self, form: ItemForm, fields: Json) -> int:
        """Opens an item of the tool's own; returns its place in the output."""
        ...

    def conclude(self, index: int, fields: Json, *, failed: bool = False) -> None:
        """Closes such an item."""
        ...

    def show(self, form: ItemForm, fields: Json) -> None:
        """Adds an item that is whole."""
        ...


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call that a tool is to run.

    Attributes:
        call: what the model called.
        item: the call's item, as it is so far.
        stagehand: shows the client what comes of it.
    """

    call: ServerCall
    item: Json
    stagehand: Stagehand

    def advance(self, stage: Stage) -> None:
        """Says how far the call is."""
        assert self.call.index is not None
        self.stagehand.advance(self.call.index, stage)

    def arguments(self) -> Json:
        """The arguments, as the object that they are to be.

        Raises:
            ToolError: they are not.
        """
        try:
            value = orjson.loads(self.call.arguments)
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
        kind: how a call of it looks to the client.
        run: runs a call that the server has to answer; None when the client does. It raises `ToolError` when the call
            does not work out.
        repeatable: whether a call that may have run already may be run once more.
        origin: the namespace, if any, and the name by which the client knows it, if it gave it one.
        deferred: whether the model sees it only after a search for tools, where there is one.
    """

    chat: Json
    kind: CallKind
    run: Callable[[Invocation], Awaitable[Outcome]] | None = None
    repeatable: bool = False
    origin: tuple[str | None, str] | None = None
    deferred: bool = False

    @property
    def name(self) -> str:
        """The name by which the model calls it."""
        return str(self.chat[self.chat["type"]]["name"])

    def renamed(self, name: str) -> Function:
        """The function under another name."""
        form = self.chat["type"]
        return replace(self, chat={**self.chat, form: {**self.chat[form], "name": name}})


class Tool(Protocol):
    """An entry of a request's `tools`."""

    def functions(self) -> Sequence[Function]:
        """What the model can call of it, as far as that is known."""
        ...

    def chosen(self, choice: Json) -> Collection[str]:
        """The names of those functions that an entry of a `tool_choice` means."""
        ...


@runtime_checkable
class NeedsPreparation(Protocol):
    """A tool that has to ask somebody what its functions are, or to know what was said before."""

    def prepare(self, items: Sequence[Json], stagehand: Stagehand) -> Coroutine[Any, Any, None]:
        """Asks; `items` are the conversation so far, in which the answer may stand.

        Raises:
            ApiError: the response cannot be made without it.
        """
        ...


@runtime_checkable
class FindsTools(Protocol):
    """A tool that finds others, which the model does not see before."""

    def found(self) -> Sequence[Json]:
        """Those that were found, as entries of a request's `tools`."""
        ...


@runtime_checkable
class Cites(Protocol):
    """A tool whose results the model cites by markers."""

    def cite(self, key: str, place: str) -> Citation | None:
        """What a marker with this key cites; `place` is what stands behind its dagger."""
        ...


@dataclass(frozen=True, slots=True)
class DueCall:
    """A call that the model made in an earlier response, and that is to be run now.

    Attributes:
        name: of the function.
        kind: how it looks to the client now.
    """

    name: str
    kind: CallKind
    arguments: str


@runtime_checkable
class HasDueCalls(Protocol):
    """A tool whose calls may have to wait for the next response."""

    def due(self, items: Sequence[Json]) -> Sequence[DueCall]:
        """Its calls that the client has allowed; `items` are the history and the input.

        Raises:
            ApiError: 400, for one that the tool cannot run.
        """
        ...


@runtime_checkable
class HoldsConnections(Protocol):
    """A tool that keeps something open from call to call."""

    def release(self) -> None:
        """Lets go of it: the response has ended."""
        ...


def chat_function(name: str, description: str | None, parameters: Json | None, **more: Any) -> Json:
    """An entry of a chat request's `tools`."""
    function: Json = {"name": name, "parameters": parameters or {"type": "object", "properties": {}}}
    if description is not None:
        function["description"] = description
    return {"type": "function", "function": function | more}
