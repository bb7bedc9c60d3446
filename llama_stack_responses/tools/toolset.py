"""The tools of one response: what the model sees of them, and which calls are accepted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from heapq import nsmallest
from itertools import chain
from typing import Final

from ..chat.cleaned_names import meant_name
from ..concurrency.offloading import in_thread_if_large
from ..concurrency.tasks import gather_or_cancel
from ..core.errors import bad_request
from ..core.program_names import RUN_PROGRAM
from ..core.shapes import DEFAULT_LIMITS
from ..core.types import Json
from ..items.mcp_approvals import Approvals
from ..logs import get_logger
from ..requests.item_tools import (
    CARRIERS,
    Identity,
    Selection,
    ToolRoom,
    declared_again,
    identities,
    members_of,
    with_members,
)
from ..requests.request import CreateRequest
from ..requests.unavailable_tools import MissingTool, OmittedTool, Unavailable, UnavailableTool
from ..stream.call_kinds import CallKind, ServerCall, Whole
from ..stream.citations import Citation, CitationExtractor
from .function_names import NO_FUNCTIONS, FunctionNames
from .mcp.list_budget import HasList, ListBudget, ServerBounds
from .tool import (
    Cites,
    DueCall,
    FindsTools,
    HasDueCalls,
    HoldsResources,
    NeedsCheck,
    NeedsPreparation,
    RunsPrograms,
    Tool,
)
from .tool_function import Function, ItemReporter
from .tool_history import ToolHistory

logger = get_logger(__name__)

Maker = Callable[[Json, CreateRequest], Tool]
"""A tool factory, which takes an entry of `tools` and the whole request."""

Makers = Mapping[str, Maker]
"""Tool factories by the type of the entry."""

_NONE_TO_CALL: Final = (
    "'tool_choice' requires a call of a tool, but the model can call none of the allowed tools: this stack lacks them, "
    "or only programs may call them. Omit 'tool_choice', or allow another tool."
)

REFUSED: Final = Unavailable()
SERVERS: Final = ServerBounds()


_SHOWN_NAMES: Final = 50
_ROUNDS_WITHHELD: Final = 2
"""Model rounds without hosted tools: a second one if the model calls in the first, in spite of what it is offered."""
_NOTHING: Final = frozenset[Identity | None]()


class Toolset:
    """The tools that a request declares.

    Calls that `tool_choice` does not allow are rejected, and a tool chosen by name is called once. Without
    `parallel_tool_calls`, only the first call of a round is accepted. Of hosted tools, the first `max_tool_calls` calls
    are accepted, and none once they are withheld.

    Args:
        request: the request.
        makers: the available tools.
        unavailable: how a request for an unavailable tool is handled.
        servers: bounds on the MCP servers; of those in items, the newest count.
        max_tools: maximum number of tools; of those in items, the newest count.

    Attributes:
        omitted: the types of the tools that were left out, as keys.

    Raises:
        ApiError: 400, this stack does not have a tool.
    """

    def __init__(
        self,
        request: CreateRequest,
        makers: Makers,
        unavailable: Unavailable = REFUSED,
        servers: ServerBounds = SERVERS,
        max_tools: int = DEFAULT_LIMITS.max_tools,
    ) -> None:
        self._request = request
        self._makers = makers
        self._unavailable = unavailable
        self._servers = servers
        self.omitted: dict[str, None] = {}
        self._tools: list[Tool] = []
        self._entries: list[Json] = []
        self._known: dict[Identity, int] = {}  # with the places of their tools
        self._room = ToolRoom(max_tools, servers.servers)
        for entry in request.tools:
            self._room.take(entry)
            self._add(entry)
        self._share_budget()
        self._searches = any(isinstance(tool, FindsTools) for tool in self._tools)
        self._loaded = _NOTHING
        self._choice = choice = request.tool_choice
        self._by_name = isinstance(choice, dict) and choice["type"] != "allowed_tools"
        self._must_be_allowed = self._by_name or (isinstance(choice, dict) and choice["mode"] == "required")
        self._must_call = choice == "required" or self._must_be_allowed
        self._parallel = request.parallel_tool_calls is not False and not self._by_name
        self._max_calls = request.max_tool_calls
        self._in_round = 0
        self._withheld = 0
        self.hosted_calls = 0
        self._index()

    async def prepare(self, items: Sequence[Json], reporter: ItemReporter) -> None:
        """Let the tools determine their functions.

        Args:
            items: the history, the input and the output so far; they may contain tools.

        Raises:
            ApiError: the response cannot be created with these tools.
        """
        selection, newest = await in_thread_if_large(partial(self._select, items), items)
        self._replace(newest)
        self._load(selection)
        if asking := self._asking():
            history = await in_thread_if_large(partial(ToolHistory, items), items)
            await gather_or_cancel(self._prepare(number, tool, history, reporter) for number, tool in asking)
            self._index()
        await self.refresh()
        if self._must_call and not self._allowed:
            raise bad_request(_NONE_TO_CALL, "tool_choice")

    async def check(self) -> None:
        """Check the request's tools before the response is queued.

        Raises:
            ApiError: the response cannot be created with these tools.
        """
        declared = enumerate(self._tools[: len(self._request.tools)])
        await gather_or_cancel(self._check(number, tool) for number, tool in declared if isinstance(tool, NeedsCheck))

    async def _check(self, number: int, tool: NeedsCheck) -> None:
        try:
            await tool.check()
        except UnavailableTool as error:
            self._omitted(number, error)

    def _asking(self) -> list[tuple[int, NeedsPreparation]]:
        """Return the tools to prepare: those of the request, and those of items, of which the newest come first."""
        asking = [(number, tool) for number, tool in enumerate(self._tools) if isinstance(tool, NeedsPreparation)]
        declared = len(self._request.tools)
        return sorted(asking, key=lambda each: each[0] if each[0] < declared else declared - each[0])

    async def _prepare(self, number: int, tool: NeedsPreparation, history: ToolHistory, reporter: ItemReporter) -> None:
        try:
            await tool.prepare(history, reporter)
        except UnavailableTool as error:
            self._tools[number] = self._omitted(number, error)

    async def refresh(self) -> None:
        """Load the tools that were found since the last call, and describe to the model what its programs can call."""
        for tool in self._tools:
            if isinstance(tool, FindsTools):
                self._load(self._room.select(tool.found(), self._known))
        for _, runner in self._runners():
            functions = {name: each for name, each in self._functions.items() if self._is_of_programs(each)}
            if runner.functions_of_programs.keys() != functions.keys():
                runner.functions_of_programs = functions
                await runner.describe()
                self._index()

    def _runners(self) -> list[tuple[int, RunsPrograms]]:
        return [(number, tool) for number, tool in enumerate(self._tools) if isinstance(tool, RunsPrograms)]

    def _is_of_programs(self, function: Function) -> bool:
        return function.is_programmatic and self._is_loaded(function)

    def unfinished(self) -> list[ServerCall]:
        """Return the programs of earlier responses that go on in this one."""
        calls = [
            ServerCall(self._function_names.name_of(number, RUN_PROGRAM), call_id, "{}", closed=True)
            for number, runner in self._runners()
            for call_id in runner.unfinished
        ]
        self.hosted_calls += len(calls)
        return calls

    @property
    def spent(self) -> bool:
        """Whether the response has made all the calls of hosted tools that it may make."""
        return self._max_calls is not None and self.hosted_calls >= self._max_calls

    def withhold(self) -> None:
        """Offer no hosted tools in the next round, so that the model answers or calls a tool of the client."""
        self._withheld += 1

    @property
    def exhausted(self) -> bool:
        """Whether the model has had its rounds without hosted tools."""
        return self._withheld >= _ROUNDS_WITHHELD

    def take_hosted_call(self) -> bool:
        """Count a call of a hosted tool; return False if there are too many."""
        if self._withheld or self.spent:
            return False
        self.hosted_calls += 1
        return True

    async def due(self, items: Sequence[Json]) -> list[DueCall]:
        """Return the calls of earlier responses that must run before the model continues.

        Raises:
            ApiError: 400, a call cannot be run.
        """
        calling = [(number, tool) for number, tool in enumerate(self._tools) if isinstance(tool, HasDueCalls)]
        if not calling:
            return []
        approved = {each["id"]: each for each in await in_thread_if_large(lambda: Approvals(items).to_make(), items)}
        calls: list[DueCall] = []
        for number, tool in calling:
            for call in tool.due(list(approved.values())):
                # An item may repeat a declared server, which must not make the call again.
                del approved[call.request_id]
                calls.append(replace(call, name=self._function_names.name_of(number, call.name)))
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
        return self._function_names.names

    def offer(self) -> tuple[list[Json], str | None]:
        """Return the `tools` and the `tool_choice` of a chat request. Call `refresh` before it."""
        self._in_round = 0
        # With `allowed_tools`, all tools stay visible, which keeps the prompt's prefix cached, and other calls are
        # rejected.
        # If a call is required, only the allowed are visible: the model server forces a call of any visible tool.
        seen = [each for each in self._functions.values() if self._is_seen(each)]
        if self._withheld:
            # To keep them in the prompt with "none" would not keep its cache: the hosts leave them out then.
            seen = [each for each in seen if not each.kind.hosted]
        visible = [each.chat for each in seen]
        if self._withheld and not any(each.name in self._allowed for each in seen):
            return visible, "none"
        if self.hosted_calls and self._choice is not None:
            return visible, "auto"  # the model has made the required call, and may answer now
        if not isinstance(self._choice, dict):
            return visible, self._choice
        # Not every server supports a choice by name; all that can force a call support this.
        return visible, "required" if self._by_name else str(self._choice["mode"])

    def citation_extractor(self) -> CitationExtractor | None:
        """Return the converter of citation markers in a round's text; None if no tool is cited."""
        citable = [tool for tool in self._tools if isinstance(tool, Cites)]

        def cite(key: str, lines: str) -> Citation | None:
            return next((citation for tool in citable if (citation := tool.cite(key, lines))), None)

        return CitationExtractor(cite) if citable else None

    def kind_of(self, name: str) -> CallKind | None:
        """Return how a call appears to the client, at its beginning; None to reject the call."""
        if name not in self._allowed or (self._in_round and not self._parallel):
            return None
        kind = self._functions[name].kind
        if kind.hosted and not self.take_hosted_call():
            return None
        self._in_round += 1
        return kind

    def meant(self, name: str) -> str:
        """Return the name of the function that the name of a call means; the name as it is if there is none."""
        return meant_name(name, self._functions)

    def whole_of(self, name: str) -> Whole | None:
        """Return what reads the arguments of a call, accepted or not; None if they are not read as a whole."""
        function = self._functions.get(name)
        return function.kind.whole if function else None

    def has(self, name: str) -> bool:
        """Return whether there is a function with this name."""
        return name in self._functions

    def misses_choice(self, names: Iterable[str]) -> bool:
        """Return whether calls are none of those that the choice requires, none of which was made before."""
        return self._must_be_allowed and not self.hosted_calls and not any(name in self._allowed for name in names)

    def function(self, name: str) -> Function:
        """Return the function of an accepted call."""
        return self._functions[name]

    async def refusal(self, call: ServerCall) -> str:
        """Return the error for the model about a rejected call."""
        names = self._allowed_names()
        function = self._functions.get(call.name)
        if function is None:
            return f"There is no tool named '{call.name}'. Tools that may be called: {names}."
        if function.kind.hosted and (self._withheld or self.spent):
            return "No more tools may be called for this response. Answer with what you know."
        if call.name in self._allowed and (argument_error := await self.argument_error(call)):
            return argument_error
        if call.name in self._allowed:
            return f"Only one tool may be called at a time. Call '{call.name}' again after you have seen its result."
        return f"The tool '{call.name}' cannot be called in this turn. Tools that may be called: {names}."

    def _allowed_names(self) -> str:
        """Return the names of the functions that may be called, the first of many: each refused call repeats them."""
        more = len(self._allowed) - _SHOWN_NAMES
        names = ", ".join(nsmallest(_SHOWN_NAMES, self._allowed)) or "none"
        return f"{names}, and {more} more" if more > 0 else names

    async def argument_error(self, call: ServerCall) -> str | None:
        """Return the error for the model about invalid arguments; None if they are valid."""
        whole = self.whole_of(call.name)
        if whole is None or await in_thread_if_large(partial(whole, call.arguments), call.arguments) is not None:
            return None
        return f"The arguments of this call are not valid for '{call.name}'. Call again with valid ones."

    def _is_seen(self, function: Function) -> bool:
        if self._must_be_allowed:
            return function.name in self._allowed
        return function.is_direct and self._is_loaded(function)

    def _is_loaded(self, function: Function) -> bool:
        return not (self._searches and function.deferred) or function.origin in self._loaded

    def _select(self, items: Sequence[Json]) -> tuple[Selection, dict[Identity, Json]]:
        """Return the tools of items that are new, and the newest declarations of those that are known."""
        tools = chain.from_iterable(item["tools"] for item in items if item["type"] in CARRIERS)
        newest = {name: tool for name, tool in declared_again(items).items() if name in self._known}
        return self._room.select([*tools], self._known), newest

    def _replace(self, newest: Mapping[Identity, Json]) -> None:
        """Replace tools that items declare again: items come behind the request's `tools`."""
        places = dict.fromkeys(self._known[name] for name in newest)
        for number in places:
            entry = self._entries[number]
            names, members = identities(entry), members_of(entry)
            changed = [newest.get(name, tool) for name, tool in zip(names, members, strict=True)]
            if any(new != old for new, old in zip(changed, members, strict=True)):
                self._entries[number] = with_members(entry, changed)
                self._tools[number] = self._made(number)
        if places:
            self._index()

    def _load(self, selection: Selection) -> None:
        """Make tools visible that were found, whether declared before or not."""
        if selection.named:
            self._loaded = self._loaded.union(selection.named)
        for entry in selection.added:
            self._add(entry)
        if selection.added:
            self._share_budget()
            self._index()

    def _share_budget(self) -> None:
        """Let the MCP servers among the tools share one budget for their lists."""
        for tool in self._tools:
            if isinstance(tool, HasList):
                tool.budget = self._budget

    @cached_property
    def _budget(self) -> ListBudget:
        return ListBudget(self._servers)

    def _add(self, entry: Json) -> None:
        number = len(self._entries)
        self._entries.append(entry)
        for name in identities(entry):
            self._known.setdefault(name, number)
        self._tools.append(self._made(number))

    def _made(self, number: int) -> Tool:
        """Return the tool of an entry, or its replacement if it is not available."""
        try:
            return self._tool_of(self._entries[number])
        except UnavailableTool as error:
            return self._omitted(number, error)

    def _tool_of(self, entry: Json) -> Tool:
        make = self._makers.get(entry["type"])
        if make is None:
            raise MissingTool(entry["type"])
        return make(entry, self._request)

    def _omitted(self, number: int, error: UnavailableTool) -> OmittedTool:
        """Return the replacement for an unavailable tool.

        Raises:
            UnavailableTool: the new request has it, and the policy is not to leave it out. The client cannot take back
                a tool of an earlier request.
        """
        kind, path = self._entries[number]["type"], self._path(number)
        if path and not self._unavailable.omits(error):
            raise error.at(path)
        self.omitted[kind] = None
        if path is None:
            logger.info("omitted an unavailable tool of the conversation: type %s", kind)
        elif self._unavailable.is_first(kind):
            logger.warning("omitted a tool of requests that this stack has not: type %s", kind)
        return OmittedTool()

    def _path(self, number: int) -> str | None:
        """Return the path of a tool in the request; None if only earlier items of the conversation have it."""
        if number < len(self._request.tools):
            return f"tools[{number}]"
        return next((self._new[name] for name in identities(self._entries[number]) if name in self._new), None)

    @cached_property
    def _new(self) -> Mapping[Identity, str]:
        """The paths of the tools in the items of the request."""
        return {
            name: f"input[{place}].tools[{number}]"
            for place, item in enumerate(self._request.input_items)
            if item["type"] in CARRIERS
            for number, entry in enumerate(item["tools"])
            for name in identities(entry)
        }

    def _index(self) -> None:
        self._function_names = FunctionNames(self._tools) if self._tools else NO_FUNCTIONS
        self._functions = self._function_names.functions
        self._allowed = self._chosen()

    def _chosen(self) -> Collection[str]:
        """Return the names of the functions that may be called."""
        if self._choice == "none":
            return ()
        if not isinstance(self._choice, dict):
            return frozenset(name for name, each in self._functions.items() if each.is_direct)
        chosen = self._function_names.chosen([self._choice] if self._by_name else self._choice["tools"])
        return frozenset(name for name in chosen if self._functions[name].is_direct)
