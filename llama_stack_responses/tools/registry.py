"""The tools that there are, by their type in a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from llama_stack_responses.core.declared_tools import WEB_SEARCH_TYPES
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.fetch.pages import Pages
from llama_stack_responses.sandbox.containers import Containers

from .apply_patch import apply_patch_tool
from .code_interpreter import CodeInterpreterTool, Uploaded
from .computer import computer_tool
from .custom import CustomTool
from .function import FunctionTool
from .namespace import NamespaceTool
from .runtime import ToolRuntime
from .shell import local_shell_tool, shell_tool
from .tool_search import tool_search_tool
from .toolset import Makers
from .web_search import WebSearch


@dataclass(frozen=True, slots=True)
class Services:
    """What hosted tools work with; what the stack does not have is None, and the tools that need it are refused.

    Attributes:
        who: the user who asks.
        uploaded: reads uploaded files.
        runtime: the stack's own tools, its web search among them.
        pages: opens web pages.
        containers: where code runs.
    """

    who: Callable[[], Owner]
    uploaded: Uploaded
    runtime: ToolRuntime | None = None
    pages: Pages | None = None
    containers: Containers | None = None

    async def close(self) -> None:
        """Ends what runs for tools."""
        if self.containers:
            await self.containers.close()


def tool_makers(services: Services) -> Makers:
    """All tools: those that the client runs, and those that this stack can run."""
    return {**client_tools(), **_hosted_tools(services)}


def client_tools() -> Makers:
    """Those that the client runs: they need nothing of the server."""
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


def _hosted_tools(services: Services) -> Makers:
    hosted: Makers = {}
    if services.containers:
        containers = services.containers
        code = partial(CodeInterpreterTool, containers=containers, who=services.who, uploaded=services.uploaded)
        hosted = {**hosted, "code_interpreter": code}
    if services.runtime:
        search = partial(WebSearch, runtime=services.runtime, pages=services.pages)
        hosted = {**hosted, **dict.fromkeys(WEB_SEARCH_TYPES, search)}
    return hosted
