"""The tools of one response: what the model sees of them, and which calls are accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import orjson

from llama_stack_responses.core.errors import bad_request
from llama_stack_responses.core.schema.request import CreateRequest
from llama_stack_responses.core.schema.shapes import DEFAULT_LIMITS
from llama_stack_responses.core.stream.calls import CallKind, ServerCall
from llama_stack_responses.core.stream.citing import Citation, Citing

from ..concurrency import gather_or_cancel
from ..core.types import Json
from ..core.unavailable_tools import Unavailable
from .catalog import Catalog
from .mcp.list_budget import ListBudget, ServerBounds
from .tool import (
    Cites,
    DueCall,
    FindsTools,
    Function,
    HasDueCalls,
    HoldsResources,
    ItemReporter,
    NeedsPreparation,
    Tool,
)

Makers = Mapping[str, Callable[[Json, CreateRequest], Tool]]
"""Tool factories by the type of an entry of `tools`; they take the entry and the whole request."""

_NONE_TO_CALL: Final = "'tool_choice' demands a call of a tool, and this stack has none of those that it allows."

REFUSED: Final = Unavailable()
SERVERS: Final = ServerBounds()

_CARRIERS: Final = ("tool_search_output", "additional_tools")
"""The items that contain tools."""


class Toolset:
    """The tools that a request declares.

    Calls that `tool_choice` does not allow are rejected, and a tool chosen by name is called once. Without
    `parallel_tool_calls`, only the first call of a round is accepted. Of hosted tools, the first `max_tool_calls` calls
    are accepted.

    Args:
        request: the request.
        makers: the available tools.
        unavailable: how a request for an unavailable tool is handled.
        servers: bounds on the MCP servers, including those in items.
        most: maximum number of tools, including those in items.

    Raises:
        ApiError: 400, this stack does not have a tool, or there are too many MCP servers.
    """

    def __init__(
        self,
        request: CreateRequest,
        makers: Makers,
        unavailable: Unavailable = REFUSED,
        servers: ServerBounds = SERVERS,
        most: int = DEFAULT_LIMITS.max_tools,
    ) -> None:
        self._most = most
        self._request = request
        self._makers = makers
        self._unavailable = unavailable
        self._tools = [self._made(entry, f"tools[{number}].type") for number, entry in enumerate(request.tools)]
        self._budget = ListBudget(servers)
        self._budget.share(self._tools)
        self._searches = any(isinstance(tool, FindsTools) for tool in self._tools)
        self._loaded: set[tuple[str | None, str] | None] = set()
        self._choice = choice = request.tool_choice
        self._by_name = isinstance(choice, dict) and choice["type"] != "allowed_tools"
        self._must_be_allowed = self._by_name or (isinstance(choice, dict) and choice["mode"] == "required")
        self._must_call = choice == "required" or self._must_be_allowed
        self._parallel = request.parallel_tool_calls is not False and not self._by_name
        self._max_calls = request.max_tool_calls
        self._in_round = 0
        self.hosted_calls = 0
        self._index()

    async def prepare(self, items: Sequence[Json], reporter: ItemReporter) -> None:
        """Let the tools determine their functions.

        Args:
            items: the history, the input and the output so far; they may contain tools.

        Raises:
            ApiError: the response cannot be created with these tools.
        """
        self._load([tool for item in items if item["type"] in _CARRIERS for tool in item["tools"]])
        if asking := [tool for tool in self._tools if isinstance(tool, NeedsPreparation)]:
            await gather_or_cancel(tool.prepare(items, reporter) for tool in asking)
            self._index()
        if self._must_call and not self._allowed:
            raise bad_request(_NONE_TO_CALL, "tool_choice")

    def due(self, items: Sequence[Json]) -> list[DueCall]:
        """Return the calls of earlier responses that must run before the model continues.

        Raises:
            ApiError: 400, a call cannot be run.
        """
        calls = [
            replace(call, name=self._catalog.name_of(number, call.name))
            for number, tool in enumerate(self._tools)
            if isinstance(tool, HasDueCalls)
            for call in tool.due(items)
        ]
        self.hosted_calls += len(calls)
        return calls

    def release(self) -> None:
        """Release the tools' connections and pages at the end of the response."""
        for tool in self._tools:
            if isinstance(tool, HoldsResources):
                tool.release()

    @property
    def names(self) -> Mapping[tuple[str | None, str], str]:
        """Function names for the model, by namespace (if any) and the name that the client uses."""
        return self._catalog.names

    def offer(self) -> tuple[list[Json], str | None]:
        """Return the `tools` and the `tool_choice` of a chat request."""
        self._in_round = 0
        for tool in self._tools:
            if isinstance(tool, FindsTools):
                self._load(tool.found())
        # With `allowed_tools`, all tools stay visible, which keeps the prompt's prefix cached, and other calls are
        # rejected.
        # If a call is required, only the allowed are visible: the model server forces a call of any visible tool.
        seen = [each.chat for each in self._functions.values() if self._is_seen(each)]
        if self.hosted_calls and self._choice is not None:
            return seen, "auto"  # the model has made the required call, and may answer now
        if not isinstance(self._choice, dict):
            return seen, self._choice
        # Not every server supports a choice by name; all that can force a call support this.
        return seen, "required" if self._by_name else str(self._choice["mode"])

    def citing(self) -> Citing | None:
        """Return the converter of citation markers in a round's text; None if no tool is cited."""
        citable = [tool for tool in self._tools if isinstance(tool, Cites)]

        def cite(key: str, place: str) -> Citation | None:
            return next((found for tool in citable if (found := tool.cite(key, place))), None)

        return Citing(cite) if citable else None

    def kind_of(self, name: str) -> CallKind | None:
        """Return how a call appears to the client, at its beginning; None to reject the call."""
        if name not in self._allowed or (self._in_round and not self._parallel):
            return None
        kind = self._functions[name].kind
        if kind.hosted:
            if self._max_calls is not None and self.hosted_calls >= self._max_calls:
                return None
            self.hosted_calls += 1
        self._in_round += 1
        return kind

    def function(self, name: str) -> Function:
        """Return the function of an accepted call."""
        return self._functions[name]

    def refusal(self, call: ServerCall) -> str:
        """Return the error for the model about a rejected call."""
        names = ", ".join(sorted(self._allowed)) or "none"
        function = self._functions.get(call.name)
        if function is None:
            return f"There is no tool named '{call.name}'. Tools that may be called: {names}."
        if function.kind.hosted and self.hosted_calls == self._max_calls:
            return "No more tools may be called for this response. Answer with what you know."
        if call.name in self._allowed and (misread := self.misread(call)):
            return misread
        if call.name in self._allowed:
            return f"Only one tool may be called at a time. Call '{call.name}' again after you have seen its result."
        return f"The tool '{call.name}' cannot be called in this turn. Tools that may be called: {names}."

    def misread(self, call: ServerCall) -> str | None:
        """Return the error for the model about invalid arguments; None if they are valid."""
        whole = self._functions[call.name].kind.whole
        if whole is None or whole(call.arguments) is not None:
            return None
        return f"The arguments of this call are not what '{call.name}' takes. Call again with valid ones."

    def _is_seen(self, function: Function) -> bool:
        if self._must_be_allowed:
            return function.name in self._allowed
        return not (self._searches and function.deferred) or function.origin in self._loaded

    @cached_property
    def _known(self) -> set[bytes]:
        """The encoded entries of the declared tools; computed on demand, since few requests need them."""
        return set(map(_same, self._request.tools))

    def _load(self, entries: Sequence[Json]) -> None:
        """Make tools visible that were found, whether declared before or not."""
        known = len(self._tools)
        for entry in entries:
            tool = self._made(entry, "input")
            self._loaded |= {each.origin for each in tool.functions()}
            if (same := _same(entry)) not in self._known:
                self._known.add(same)
                self._tools.append(tool)
        if len(self._tools) > self._most:
            raise bad_request(f"The input has too many tools. A request can have {self._most} in all.", "input")
        if len(self._tools) > known:
            self._budget.share(self._tools)
            self._index()

    def _made(self, entry: Json, param: str) -> Tool:
        make = self._makers.get(entry["type"])
        if make is None:
            return self._unavailable.instead(entry["type"], param)
        return make(entry, self._request)

    def _index(self) -> None:
        self._catalog = Catalog(self._tools)
        self._functions = self._catalog.functions
        self._allowed = frozenset(self._chosen())

    def _chosen(self) -> Iterable[str]:
        if self._choice == "none":
            return ()
        if not isinstance(self._choice, dict):
            return self._functions
        return self._catalog.chosen([self._choice] if self._by_name else self._choice["tools"])


def _same(entry: Json) -> bytes:
    """Return a key that is equal for two entries of the same tool."""
    return orjson.dumps(entry, option=orjson.OPT_SORT_KEYS)
