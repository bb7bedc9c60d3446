"""MCP servers: their tools become functions of the model. This server calls them, some only with approval."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from llama_stack_responses.core.arguments import decoded_arguments
from llama_stack_responses.core.errors import ApiError, bad_request
from llama_stack_responses.core.mcp import Approvals, qualified_name
from llama_stack_responses.core.schema.request import CreateRequest
from llama_stack_responses.core.stream.calls import MCP_APPROVAL_REQUEST, MCP_CALL, MCP_LIST_TOOLS, CallKind

from ...core.types import Json
from ..tool import DueCall, Function, Invocation, ItemReporter, Outcome, ToolError, chat_function
from .list_budget import ListBudget, ServerBounds
from .results import outcome_of
from .servers import McpAddress, McpError, McpSessionFactory

_INVALID_PARAMS: Final = -32602
"""JSON-RPC's error code for invalid arguments."""


class McpTool:
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
        self._approval = servers.require_approval
        self._session = servers.session(_address(declared))
        self.budget = ListBudget(ServerBounds())
        self._functions: dict[str, Function] = {}

    def functions(self) -> Sequence[Function]:
        """Return a function for each tool that the server has and the request allows."""
        return list(self._functions.values())

    def chosen(self, choice: Json) -> Collection[str]:
        """Return all functions if the choice names only the server's label, or the single one that it names."""
        if choice["type"] != "mcp" or choice["server_label"] != self._label:
            return []
        return [each.name for name, each in self._functions.items() if choice.get("name") in (None, name)]

    async def prepare(self, items: Sequence[Json], reporter: ItemReporter) -> None:
        """Take the tools from a list in the conversation, or request them from the server and report the list to the
        client.

        Raises:
            ApiError: 424, the server returned no list.
        """
        tools = self._listed(items)
        if tools is None:
            tools = await self._list(reporter)
        self._functions = {tool["name"]: self._function(tool) for tool in tools if self._allows(tool)}

    def due(self, items: Sequence[Json]) -> Sequence[DueCall]:
        """Return the approved calls of this server that have not been made yet."""
        requests = [each for each in Approvals(items).to_make() if each["server_label"] == self._label]
        return [self._due(request) for request in requests]

    def release(self) -> None:
        """End the session."""
        self._session.release()

    def _listed(self, items: Sequence[Json]) -> list[Json] | None:
        """Return the tools that the conversation lists for this server; None if one in the request is absent."""
        lists = [item for item in items if item["type"] == "mcp_list_tools" and item["server_label"] == self._label]
        if not lists or lists[-1].get("error"):
            return None
        tools: list[Json] = lists[-1]["tools"]
        return tools if _names(self._declared.get("allowed_tools")) <= {tool["name"] for tool in tools} else None

    async def _list(self, reporter: ItemReporter) -> list[Json]:
        index = reporter.begin(MCP_LIST_TOOLS, {"server_label": self._label})
        try:
            async with self.budget.turn:
                tools = [_listing(tool) for tool in await self._session.list_tools(self.budget.take)]
        except McpError as error:
            reporter.conclude(index, {"error": str(error)}, failed=True)
            message = f"Error retrieving tool list from MCP server: '{self._label}'. {error}"
            raise ApiError(424, message, type="external_connector_error", code="http_error", param="tools") from error
        tools = [tool for tool in tools if self._allows(tool)]
        reporter.conclude(index, {"tools": tools})
        return tools

    def _allows(self, tool: Json) -> bool:
        allowed = self._declared.get("allowed_tools")
        if isinstance(allowed, list):
            return tool["name"] in allowed
        return not allowed or _fits(tool, allowed)

    def _needs_approval(self, tool: Json) -> bool:
        """Whether a call needs the client's approval, by the request or else the configuration."""
        required = self._declared.get("require_approval", self._approval)
        if isinstance(required, str):
            return required == "always"
        always, never = (required.get(word) or {} for word in ("always", "never"))
        return not _fits(tool, never) or _fits(tool, always)

    def _function(self, tool: Json) -> Function:
        name = tool["name"]

        def fields(_: str, __: str) -> Json:
            return {"server_label": self._label, "name": name}

        async def run(invocation: Invocation) -> Outcome:
            return await self._run(name, invocation)

        kind = CallKind(MCP_CALL, lambda *_: {**fields(*_), "approval_request_id": None}, hosted=True)
        if self._needs_approval(tool):
            kind = CallKind(MCP_APPROVAL_REQUEST, fields, whole=_asked)
        return Function(
            chat_function(qualified_name(self._label, name), self._described(tool), tool["input_schema"]),
            kind,
            run,
            repeatable=self._is_repeatable(tool),
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
            message = f"The approved tool '{request['name']}' is not among those of the MCP server '{self._label}'."
            raise bad_request(message, "tools")
        fields = {"server_label": self._label, "name": request["name"], "approval_request_id": request["id"]}
        return DueCall(function.name, CallKind(MCP_CALL, lambda *_: fields, hosted=True), request["arguments"])

    async def _run(self, name: str, invocation: Invocation) -> Outcome:
        try:
            arguments = invocation.arguments()
        except ToolError as error:
            of_item = {"type": "mcp_protocol_error", "code": _INVALID_PARAMS, "message": str(error)}
            raise ToolError(str(error), {"error": of_item}) from None
        try:
            result = await self._session.call_tool(name, arguments)
        except McpError as error:
            raise ToolError(str(error), {"error": error.error}) from error
        return outcome_of(result)


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


def _names(allowed: Any) -> set[str]:
    """Return the names in an `allowed_tools`."""
    names = allowed if isinstance(allowed, list) else (allowed or {}).get("tool_names", ())
    return set(names)


def _fits(tool: Json, wanted: Mapping[str, Any]) -> bool:
    """Whether a tool matches a filter. An empty filter matches none."""
    read_only = bool((tool.get("annotations") or {}).get("readOnlyHint"))
    met = []
    if "read_only" in wanted:
        met.append(read_only == wanted["read_only"])
    if "tool_names" in wanted:
        met.append(tool["name"] in wanted["tool_names"])
    return bool(met) and all(met)


def _asked(arguments: str) -> Json | None:
    """Return the fields of an approval request; None if the arguments are invalid."""
    arguments = arguments.strip() or "{}"
    try:
        return {"arguments": arguments} if isinstance(decoded_arguments(arguments), dict) else None
    except ValueError:
        return None
