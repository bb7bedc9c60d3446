"""What the server knows of a kind of item, and of a type of tool: all in one object each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from ..core.shapes import Check, object_of
from ..core.types import Json
from .call_result import CallResult
from .form import ItemType
from .view import View

_BY_TYPE: Final = object_of({})

Names = Mapping[tuple[str | None, str], str]
"""The model's names for the client's functions, by namespace (or None) and name."""


def _unchanged(tool: Json) -> Json:
    return tool


@dataclass(frozen=True, slots=True)
class Reply:
    """How an item replies to an earlier one: the output of a call, or the answer to a request for approval.

    Attributes:
        to: the type of the earlier item.
        named_by: the field of the earlier item by which replies name it.
        names: the field of the reply that has this name.
        waits_for: what a response with the earlier item waits for: `client` for an output, or `approval`. None if the
            reply is this server's.
        repeats: further fields of the earlier item that the reply has.
    """

    to: str
    named_by: str = "call_id"
    names: str = "call_id"
    waits_for: Literal["client", "approval"] | None = "client"
    repeats: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ItemKind:
    """A kind of items.

    Attributes:
        form: its type; an `ItemForm`, its form in the output and in events, if tools make such items.
        check: checks an item that a client sends, without its `type`, and returns what is kept of it.
        carrier: for items that bring tools, instead of `check`: returns this check, given the check of their `tools`.
        exchange: for calls whose items have their results: returns what the model reads of an item without a stored
            exchange, such as one that a client sent: the `exchange` of `core/exchanges.py`.
        view: how the page shows it.
        call: for calls whose outputs are items of their own: returns the function call that the model made, without its
            `type` and `call_id` (`made_call`).
        output: for outputs: returns what the model reads, as text or content parts.
        result: for items with the result of a call that programs may make: returns what the program gets.
        reply: for items that reply to an earlier one: how.
        joinable: for outputs of what the client runs: whether they may lack their `call_id` where the limits of a
            request do not require it.
        whole: returns an item with the fields that it has in a list, and that a client may omit.
        read: for items that the model reads as another one: returns that one; None if it reads nothing of the item.
        written: the fields with what the model wrote, each with the members that it wrote of objects in the field;
            None for all members.
        includable: the values of `include` that ask for fields of it.
        imported: fields that an item needs here, and that the host's own provider omits.
        searches: for calls that may search the web: returns whether an item counts as a search in a response's usage.
        container: for calls that may run in a container of this server: returns its id; None if it ran elsewhere.
        makes: what each completed call makes, by the name under which the usage of users counts it.
    """

    form: ItemType
    check: Check | None = None
    exchange: Callable[[Json], Json] | None = None
    view: View | None = None
    call: Callable[[Json, Names], Json] | None = None
    output: Callable[[Json, Names], Any] | None = None
    result: Callable[[Json], CallResult] | None = None
    reply: Reply | None = None
    joinable: bool = False
    carrier: Callable[[Check], Check] | None = None
    whole: Callable[[Json], Json] | None = None
    read: Callable[[Json], Json | None] | None = None
    written: Mapping[str, Sequence[str] | None] = field(default_factory=dict)
    includable: Sequence[str] = ()
    imported: Mapping[str, Any] = field(default_factory=dict)
    searches: Callable[[Json], bool] | None = None
    container: Callable[[Json], str | None] | None = None
    makes: str | None = None


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """How the playground of the page offers a tool: with a checkbox, or with a field for ids.

    Attributes:
        label: the label of the field.
        declaration: what the declaration has besides its type and the ids.
        ids: the field of the declaration with the ids that the user writes; None for a checkbox.
        example: an example of the ids.
    """

    label: str
    declaration: Mapping[str, Any] = field(default_factory=dict)
    ids: str | None = None
    example: str = ""


@dataclass(frozen=True, slots=True)
class ToolType:
    """A type of tool that a request can declare.

    Attributes:
        type: the `type` of its declaration.
        declaration: checks a declaration, without its `type`.
        choice: checks a `tool_choice` that names the tool, without its `type`.
        single: whether a request can have only one such tool.
        echoed: returns a declaration as the response repeats it.
        offered: how the playground offers it; None if users declare it as JSON.
        secrets: the paths of secrets in a declaration; a path leads through each entry of a list. The first field of a
            path is sealed where the request is stored, and what responses and presets show of a secret is empty.
    """

    type: str
    declaration: Check
    choice: Check = _BY_TYPE
    single: bool = False
    echoed: Callable[[Json], Json] = _unchanged
    offered: OfferedTool | None = None
    secrets: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kinds of items and the types of tools that a feature brings: the `KINDS` of its `kinds.py`."""

    items: Sequence[ItemKind] = ()
    tools: Sequence[ToolType] = ()


def made_call(name: str, arguments: Any) -> Json:
    """Return the name and the arguments of a function call of the model."""
    return {"name": name, "arguments": orjson.dumps(arguments).decode()}


def called(item: Json, names: Names) -> str:
    """Return the name by which the model called a function or a custom tool."""
    namespace = item.get("namespace")
    plain = f"{namespace}__{item['name']}" if namespace else item["name"]
    return names.get((namespace, item["name"]), plain)


def text_or_parts(item: Json, _: Names) -> Any:
    """Return the `output` of an item, which is text or content parts."""
    return item["output"]


def given(value: Json) -> Json:
    """Return an object without members that are null."""
    return {key: member for key, member in value.items() if member is not None}
