"""The interface between the generation loop and a tool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..core.types import Json
from ..stream.call_kinds import CallKind
from ..stream.citations import Citation
from .tool_function import Function, ItemReporter
from .tool_history import ToolHistory


class Tool(Protocol):
    """An entry of a request's `tools`."""

    def functions(self) -> Sequence[Function]:
        """Return the functions that the model can call, as far as they are known."""
        ...

    def handles(self) -> Collection[str]:
        """Return the handles of the entries of a `tool_choice` that may refer to this tool: see `handle_of`."""
        ...

    def chosen(self, choice: Json) -> Collection[str]:
        """Return the names of the functions that an entry of a `tool_choice` refers to; its handle is in `handles`."""
        ...


class NeedsPreparation(ABC):
    """A tool that must request its functions from a server, or restore state from the conversation."""

    @abstractmethod
    def prepare(self, history: ToolHistory, reporter: ItemReporter) -> Coroutine[Any, Any, None]:
        """Prepare the tool. `history` has the earlier calls and lists of the conversation.

        Raises:
            ApiError: the response cannot be created.
        """


class NeedsCheck(ABC):
    """A tool that the server can refuse only after some work: it needs a service of the stack, or has large data."""

    @abstractmethod
    def check(self) -> Coroutine[Any, Any, None]:
        """Check the tool before the response is queued. `prepare` of the tool checks it too.

        Raises:
            ApiError: the response cannot be created with the tool.
        """


class FindsTools(ABC):
    """A tool that finds other tools, which the model does not see before."""

    @abstractmethod
    def found(self) -> Sequence[Json]:
        """Return the tools found since the last call, as entries of a request's `tools`."""


class Cites(ABC):
    """A tool whose results the model cites with markers."""

    @abstractmethod
    def cite(self, key: str, lines: str) -> Citation | None:
        """Return the citation for a marker with this key; `lines` is the text after its dagger."""


@dataclass(frozen=True, slots=True)
class DueCall:
    """A call of an earlier response that is due in this one.

    Attributes:
        name: function name.
        kind: how it appears to the client now.
        request_id: the id of the request that was approved.
    """

    name: str
    kind: CallKind
    arguments: str
    request_id: str


class HasDueCalls(ABC):
    """A tool whose calls may be deferred to the next response."""

    @abstractmethod
    def due(self, approved: Sequence[Json]) -> Sequence[DueCall]:
        """Return its calls among the approved requests that have not been run.

        Raises:
            ApiError: 400, the tool cannot run a call.
        """


class RunsPrograms(ABC):
    """A tool whose calls are programs, which make calls of other functions.

    Attributes:
        functions_of_programs: what programs can call, by the name for the model.
        unfinished: the `call_id` of each program of earlier responses that waits for outputs of the client.
    """

    functions_of_programs: Mapping[str, Function]
    unfinished: Collection[str]

    @abstractmethod
    def describe(self) -> Coroutine[Any, Any, None]:
        """Describe to the model what programs can call, after `functions_of_programs` has changed."""


class HoldsResources(ABC):
    """A tool that keeps connections or pages between calls."""

    @abstractmethod
    def release(self) -> None:
        """Release them at the end of the response."""


def handle_of(entry: Json) -> str:
    """Return what selects the tools that an entry of a `tool_choice` may refer to: its type, and the name in it."""
    return handle(entry["type"], entry.get("server_label") or entry.get("name"))


def handle(kind: str, name: str | None = None) -> str:
    """Return the handle of the entries with this type and this name or label."""
    return kind if name is None else f"{kind}/{name}"
