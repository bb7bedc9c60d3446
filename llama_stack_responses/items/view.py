"""How the page shows the calls of a kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

_MAX_LISTED: Final = 200

type Shown = Mapping[str, Any]
"""An item whose fields may hold anything: clients sent it, or earlier versions stored it."""


@dataclass(frozen=True, slots=True)
class Link:
    """A page or a file that a call found. Its fields may hold anything."""

    url: Any = None
    title: Any = None
    text: Any = None
    file_id: Any = None


@dataclass(frozen=True, slots=True)
class Printed:
    """What the code of a call printed, or an image that it drew, as a URL. Its fields may hold anything."""

    text: Any = None
    image_url: Any = None


@dataclass(frozen=True, slots=True)
class CallView:
    """How the page shows a call.

    Attributes:
        name: the tool's name; None if the item has it.
        text: the field of the item that the model wrote; None if `arguments` are shown.
        written: returns that text of a call that has it in no field of its own.
        language: the language of that text; `text` for none.
        arguments: returns the JSON value that is shown of a call without a `text`.
        summary: returns what the title says of a call without a `text`.
        image: the field that has an image as base64, which is shown at once; None if the call makes no image.
        links: returns the pages and files that it found.
        printed: returns what its code printed and drew, in order.
        answer: the field that has its result as text.
        run_by: who runs it; `both` if the server runs it and waits for calls that the client runs.
    """

    name: str | None = None
    text: str | None = None
    written: Callable[[Shown], str] | None = None
    language: str = "text"
    arguments: Callable[[Shown], Any] | None = None
    summary: Callable[[Shown], Any] | None = None
    image: str | None = None
    links: Callable[[Shown], Iterable[Link]] | None = None
    printed: Callable[[Shown], Iterable[Printed]] | None = None
    answer: str | None = None
    run_by: Literal["server", "client", "both"] = "server"


def _output(item: Shown) -> Any:
    return item.get("output")


@dataclass(frozen=True, slots=True)
class OutputView:
    """How the page shows the output of a call, as an item of its own.

    Attributes:
        value: returns what is shown: a text, a content part, or a list of them.
        failed_status: its `status` if the call failed; None if its status does not say so.
    """

    value: Callable[[Shown], Any] = _output
    failed_status: str | None = None


@dataclass(frozen=True, slots=True)
class MessageView:
    """How the page shows a message.

    Attributes:
        parts: returns its content parts.
    """

    parts: Callable[[Shown], Iterable[Shown]]


@dataclass(frozen=True, slots=True)
class ReasoningView:
    """How the page shows reasoning, which may be sealed.

    Attributes:
        parts: returns its content parts.
        sealed: the field that has it sealed.
    """

    parts: Callable[[Shown], Iterable[Shown]]
    sealed: str


@dataclass(frozen=True, slots=True)
class SummaryView:
    """How the page shows a sealed summary of what was said before.

    Attributes:
        title: says what the item does.
    """

    title: str


@dataclass(frozen=True, slots=True)
class ToolListView:
    """How the page shows a list of tools.

    Attributes:
        tools: returns the tools.
        source: the field that says whose they are.
    """

    tools: Callable[[Shown], Iterable[Shown]]
    source: str


@dataclass(frozen=True, slots=True)
class ApprovalView:
    """How the page shows a request for the approval of a call, which has a name and `arguments`."""


@dataclass(frozen=True, slots=True)
class ApprovalReplyView:
    """How the page shows the answer to a request for approval.

    Attributes:
        approved: returns whether it approves.
    """

    approved: Callable[[Shown], bool]


type View = (
    CallView | OutputView | MessageView | ReasoningView | SummaryView | ToolListView | ApprovalView | ApprovalReplyView
)


def objects(values: Any) -> list[Shown]:
    """Return the first objects of a list; none if it is not a list."""
    entries = values[:_MAX_LISTED] if isinstance(values, list) else []
    return [each for each in entries if isinstance(each, dict)]


def listed_tools(item: Shown) -> list[Shown]:
    """Return the first `tools` of an item."""
    return objects(item.get("tools"))


def given_arguments(item: Shown) -> Any:
    """Return the `arguments` of a call."""
    return item.get("arguments")
