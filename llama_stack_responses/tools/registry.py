"""All tools, by their type in a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from ..core.types import Json
from ..items.registry import HOSTED_TOOL_NAMES
from ..requests.request import CreateRequest
from ..requests.unavailable_tools import MissingTool
from .client.apply_patch import apply_patch_tool
from .client.computer import computer_tool
from .client.custom import CustomTool
from .client.function import FunctionTool
from .client.namespace import NamespaceTool
from .client.shell import local_shell_tool, shell_tool
from .client.tool_search import tool_search_tool
from .mcp.servers import McpSessionFactory
from .tool import Tool
from .toolset import Maker, Makers


async def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class HostedTool:
    """A hosted tool that this stack can run.

    Attributes:
        make: its factory.
        available: returns whether the current user can use it. It raises an `ApiError` if the stack cannot say.
        details: what users should know of it on this server; may be empty.
    """

    make: Maker
    available: Callable[[], Awaitable[bool]] = _always
    details: str = ""


@dataclass(frozen=True, slots=True)
class HostedToolServices:
    """What hosted tools use of the stack. A service that the stack lacks is None; tools that need it are unavailable.

    Attributes:
        mcp: the MCP client.
        of_features: the hosted tools of the features, by their type.
    """

    mcp: McpSessionFactory | None = None
    of_features: Mapping[str, HostedTool] = field(default_factory=dict)


async def available_tools(services: HostedToolServices) -> dict[str, str]:
    """Return the hosted tools that this stack can run for the current user, each with its details.

    Raises:
        ApiError: 503, the stack cannot list its own tools.
    """
    return {kind: tool.details for kind, tool in _hosted_tools(services).items() if await tool.available()}


def tool_makers(services: HostedToolServices) -> Makers:
    """Return the factories of all tools: client tools, and the hosted tools that this stack can run."""
    hosted = {kind: tool.make for kind, tool in _hosted_tools(services).items()}
    named = {name: hosted[of] for name, of in HOSTED_TOOL_NAMES.items() if of in hosted}
    return {**client_tools(), **named, "shell": _shell_maker(hosted.get("shell"))}


def client_tools() -> Makers:
    """Return the factories of client tools, which need nothing of the server."""
    return {
        "function": FunctionTool,
        "custom": CustomTool,
        "namespace": NamespaceTool,
        "tool_search": tool_search_tool,
        "local_shell": local_shell_tool,
        "shell": shell_tool,
        "apply_patch": apply_patch_tool,
        "computer": computer_tool,
        "computer_use_preview": computer_tool,
    }


def _hosted_tools(services: HostedToolServices) -> dict[str, HostedTool]:
    """Return the hosted tools that this stack can run."""
    hosted: dict[str, HostedTool] = {}
    if services.mcp:
        hosted["mcp"] = HostedTool(partial(_mcp_tool, services.mcp))
    return {**hosted, **dict(services.of_features.items())}


def _mcp_tool(servers: McpSessionFactory, declared: Json, request: CreateRequest) -> Tool:
    """Return the tool of an MCP server. The first request with one imports it."""
    from .mcp.tool import McpTool

    return McpTool(declared, request, servers)


def _shell_maker(hosted: Maker | None) -> Maker:
    """Return the factory of the shell, which runs on the client's machine, or in a container of this server."""

    def make(declared: Json, request: CreateRequest) -> Tool:
        if (declared.get("environment") or {"type": "local"})["type"] == "local":
            return shell_tool(declared, request)
        if hosted is None:
            raise MissingTool("shell")
        return hosted(declared, request)

    return make
