"""MCP servers: their tools become functions of the model. This server calls them, some only with approval."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Final

from ...concurrency.offloading import in_thread_if_large
from ...core.decoded_arguments import decoded_arguments
from ...core.errors import ApiError, bad_request
from ...core.types import Json
from ...items.kinds.mcp import MCP_APPROVAL_REQUEST, MCP_CALL, MCP_LIST_TOOLS, qualified_name
from ...logs import get_logger
from ...requests.request import CreateRequest
from ...stream.call_kinds import CallKind
from ..tool import DueCall, HasDueCalls, HoldsResources, NeedsPreparation, handle
from ..tool_function import Function, Invocation, ItemReporter, Outcome, ToolError, callers_of, chat_function
from ..tool_history import ToolHistory
from .filters import ToolFilter, approvals
from .list_budget import HasList, ListBudget, ServerBounds
from .results import outcome_of
from .servers import McpAddress, McpError, McpSessionFactory

logger = get_logger(__name__)

_INVALID_PARAMS: Final = -32602
"""JSON-RPC's error code for invalid arguments."""


class McpTool(NeedsPreparation, HasDueCalls, HoldsResources, HasList):
    """A `{type: mcp, server_label, server_url | connector_id, ...}` tool of the request.

    Args:
        declared: the tool's entry.
        servers: creates the session.

    Attributes:
        budget: counts the lists of all servers of the response.
    """

    def __init__(self, declared: Json, _: CreateRequest, servers: McpSessionFactory) -> None:
        self._declared = declared
        self._label: str = declared["server_label"]
        self._repeatable = servers.repeatable
        self._allowed = ToolFilter.allowed(declared.get("allowed_tools"))
        self._always, self._never = approvals(declared.get("require_approval", servers.require_approval))
        self._session = servers.session(_address(declared))
        self.budget = ListBudget(ServerBounds())
        self._functions: dict[str, Function] = {}

    def functions(self) -> Sequence[Function]:
        """Return a function for each tool that the server has and the request allows."""
        return list(self._functions.values())

    def handles(self) -> Collection[str]:
        """Return the handle of its label."""
        return (handle("mcp", self._label),)

    def chosen(self, choice: Json) -> Collection[str]:
        """Return all functions if the choice names only the server's label, or the single one that it names."""
        if choice["type"] != "mcp" or choice["server_label"] != self._label:
            return []
        named = self._functions if choice.get("name") is None else (choice["name"],)
        return [self._functions[name].name for name in named if name in self._functions]

    async def prepare(self, history: ToolHistory, reporter: ItemReporter) -> None:
        """Take the tools from a list in the conversation, or request them from the server and report the list to the
        client.

        Raises:
            ApiError: 424, the server returned no list; 429 or 503, the response's owner or all owners hold too much.
        """
        tools = self._listed(history)
        if tools is None:
            tools = await self._list(reporter)
        self._functions = {tool["name"]: self._function(tool) for tool in tools}

    def due(self, approved: Sequence[Json]) -> Sequence[DueCall]:
        """Return the approved calls of this server that have not been run yet."""
        return [self._due(request) for request in approved if request["server_label"] == self._label]

    def release(self) -> None:
        """End the session."""
        self._session.release()

    def _listed(self, history: ToolHistory) -> list[Json] | None:
        """Return the allowed tools that the conversation lists for this server; None if one in the request is absent.

        Those over the limit are left out: a conversation has to stay continuable.
        """
        listed = history.lists.get(self._label)
        if listed is None or listed.get("error"):
            return None
        tools: list[Json] = listed["tools"]
        if not self._allowed.names <= {tool["name"] for tool in tools}:
            return None
        allowed = [tool for tool in tools if self._allowed.fits(tool)]
        count = self.budget.take(len(allowed))
        if count < len(allowed):
            logger.info("omitted tools of the conversation's list of MCP server %.100r", self._label)
        return allowed[:count]

    async def _list(self, reporter: ItemReporter) -> list[Json]:
        index = reporter.begin(MCP_LIST_TOOLS, {"server_label": self._label})

        def counted(tools: int, size: int) -> None:
            self.budget.spend(tools, size)
            reporter.hold(size)

        try:
            async with self.budget.slots:
                tools = [_listing(tool) for tool in await self._session.list_tools(counted)]
        except McpError as error:
            reporter.conclude(index, {"error": str(error)}, failed=True)
            message = f"Error retrieving tool list from MCP server: '{self._label}'. {error}"
            raise ApiError(424, message, type="external_connector_error", code="http_error", param="tools") from error
        tools = [tool for tool in tools if self._allowed.fits(tool)]
        reporter.conclude(index, {"tools": tools})
        return tools

    def _needs_approval(self, tool: Json) -> bool:
        """Whether a call needs the client's approval, by the request or else the configuration."""
        return not self._never.fits(tool) or self._always.fits(tool)

    def _function(self, tool: Json) -> Function:
        name = tool["name"]

        def fields(_: str, __: str) -> Json:
            return {"server_label": self._label, "name": name}

        async def run(invocation: Invocation) -> Outcome:
            return await self._run(name, invocation)

        kind = CallKind(MCP_CALL, lambda *_: {**fields(*_), "approval_request_id": None}, hosted=True)
        if self._needs_approval(tool):
            kind = CallKind(MCP_APPROVAL_REQUEST, fields, whole=_approval_fields)
        return Function(
            chat_function(qualified_name(self._label, name), self._described(tool), tool["input_schema"]),
            kind,
            run,
            repeatable=self._is_repeatable(tool),
            callers=callers_of(self._declared),
        )

    def _described(self, tool: Json) -> str | None:
        of_server = self._declared.get("server_description")
        described = [tool.get("description"), f"(Server '{self._label}': {of_server})" if of_server else None]
        return "\n".join(filter(None, described)) or None

    def _is_repeatable(self, tool: Json) -> bool:
        hints = tool.get("annotations") or {}
        if hints.get("readOnlyHint") or hints.get("idempotentHint"):
            return True
        return any(fnmatchcase(f"{self._label}/{tool['name']}", pattern) for pattern in self._repeatable)

    def _due(self, request: Json) -> DueCall:
        function = self._functions.get(request["name"])
        if function is None:
            message = f"The MCP server '{self._label}' does not have the approved tool '{request['name']}'."
            raise bad_request(message, "tools")
        fields = {"server_label": self._label, "name": request["name"], "approval_request_id": request["id"]}
        kind = CallKind(MCP_CALL, lambda *_: fields, hosted=True)
        return DueCall(function.name, kind, request["arguments"], request["id"])

    async def _run(self, name: str, invocation: Invocation) -> Outcome:
        try:
            arguments = await invocation.arguments()
        except ToolError as error:
            of_item = {"type": "mcp_protocol_error", "code": _INVALID_PARAMS, "message": str(error)}
            raise ToolError(str(error), {"error": of_item}) from None
        try:
            result = await self._session.call_tool(name, arguments)
        except McpError as error:
            raise ToolError(str(error), {"error": error.error}) from error
        return await in_thread_if_large(partial(outcome_of, result), result)


def _address(declared: Json) -> McpAddress:
    headers = dict(declared.get("headers") or {})
    if token := declared.get("authorization"):
        headers["Authorization"] = token if token.lower().startswith("bearer ") else f"Bearer {token}"
    return McpAddress(declared["server_label"], declared.get("server_url"), declared.get("connector_id"), headers)


def _listing(tool: Json) -> Json:
    """Convert a tool to its form in `mcp_list_tools`. Its annotations are kept: the next worker of a job needs them."""
    return {
        "name": tool["name"],
        "description": tool.get("description"),
        "input_schema": tool["inputSchema"],
        "annotations": tool.get("annotations"),
    }


def _approval_fields(arguments: str) -> Json | None:
    """Return the fields of an approval request; None if the arguments are invalid."""
    arguments = arguments.strip() or "{}"
    try:
        return {"arguments": arguments} if isinstance(decoded_arguments(arguments), dict) else None
    except ValueError:
        return None
