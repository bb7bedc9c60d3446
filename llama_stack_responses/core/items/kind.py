"""What the server knows of a kind of item, and of a type of tool: all in one object each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ..shapes import Check, object_of
from ..types import Json
from .form import ItemForm

HostedToolType = Literal[
    "web_search",
    "file_search",
    "code_interpreter",
    "shell",
    "mcp",
    "image_generation",
    "programmatic_tool_calling",
]
"""The types of tools that OpenAI runs for a request, whether this installation has them or not."""

_BY_TYPE: Final = object_of({})


@dataclass(frozen=True, slots=True)
class CallView:
    """How the page shows a call that the server runs.

    Attributes:
        name: the tool's name.
        text: the field of the item that the model wrote.
        language: the language of that text; `text` for none.
        image: the field that has an image as base64, which is shown at once; None if the call makes no image.
    """

    name: str
    text: str
    language: str = "text"
    image: str | None = None


@dataclass(frozen=True, slots=True)
class ItemKind:
    """A kind of items: the calls of a hosted tool.

    Attributes:
        form: its form in the output and in events.
        check: checks an item that a client sends, without its `type`, and returns what is kept of it.
        exchange: returns what the model reads of an item without a stored exchange, such as one that a client sent:
            the `exchange` of `core/exchanges.py`.
        view: how the page shows it.
    """

    form: ItemForm
    check: Check
    exchange: Callable[[Json], Json]
    view: CallView


@dataclass(frozen=True, slots=True)
class ToolType:
    """A type of tool that a request can declare.

    Attributes:
        type: the `type` of its declaration.
        declaration: checks a declaration, without its `type`.
        choice: checks a `tool_choice` that names the tool, without its `type`.
    """

    type: HostedToolType
    declaration: Check
    choice: Check = _BY_TYPE


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kinds of items and the types of tools that a feature brings: the `KINDS` of its `kinds.py`."""

    items: Sequence[ItemKind] = ()
    tools: Sequence[ToolType] = ()
