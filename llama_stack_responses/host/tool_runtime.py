"""The host's tool runtimes."""

from __future__ import annotations

from typing import Any, Final

from llama_stack_responses.logs import get_logger
from llama_stack_responses.tools.tool import ToolError

from ..core.types import Json
from .failures import failed

logger = get_logger(__name__)

_FILTER_THEMSELVES: Final = frozenset(
    {"remote::searxng", "remote::ddgs", "remote::exa-search", "remote::serply-search", "remote::nimble-search"}
)
"""Providers that restrict a search to `allowed_domains`; for the rest, the query contains the domains."""


class HostToolRuntime:
    """Calls tools through the host's router.

    Args:
        router: the host's implementation of its tool runtime API.
    """

    def __init__(self, router: Any) -> None:
        self._router = router
        self._known: set[str] = set()

    async def has(self, name: str) -> bool:
        """Return whether one of the stack's tool groups has a tool of this name.

        Raises:
            ApiError: 503 if the host cannot list its tools.
        """
        if name not in self._known:
            # The call also makes the host discover tools of groups that were registered before its start.
            try:
                listed = await self._router.list_runtime_tools()
            except Exception as error:
                raise failed("list of tools", "tools", error) from error
            self._known |= {tool.name for tool in listed.data}
        return name in self._known

    async def invoke(self, name: str, arguments: Json) -> str:
        """Call a tool.

        Raises:
            ToolError: the call failed; the message contains nothing that was sent to the provider.
        """
        try:
            result = await self._router.invoke_tool(name, await self._fitted(name, arguments))
        except Exception as error:
            raise _failure(name, error) from error
        if result.error_message or result.error_code:
            raise ToolError(f"The tool '{name}' failed: {result.error_message or result.error_code}")
        return _text(result.content)

    async def _fitted(self, name: str, arguments: Json) -> Json:
        domains = arguments.get("allowed_domains")
        if not domains:
            return arguments
        provider = await self._router.routing_table.get_provider_impl(name)
        if provider.__provider_spec__.provider_type in _FILTER_THEMSELVES:
            return arguments
        sites = " OR ".join(f"site:{domain}" for domain in domains)
        return {**arguments, "query": f"{arguments['query']} ({sites})"}


def _failure(name: str, error: Exception) -> ToolError:
    # The exceptions' messages may contain the request, including keys.
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        logger.warning("provider of tool %r got status %s from its service", name, status)
        return ToolError(f"The service behind the tool '{name}' answered {status}.")
    logger.warning("tool %r failed (%s)", name, type(error).__name__)
    if isinstance(error, ValueError) and "API Key" in str(error):
        return ToolError(f"The tool '{name}' has no API key for its service.")
    return ToolError(f"The tool '{name}' failed ({type(error).__name__}).")


def _text(content: Any) -> str:
    """Return the text of the host's interleaved content."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(part if isinstance(part, str) else getattr(part, "text", "") for part in parts)
