"""The host's tool runtimes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final

from ..core.lru_cache import LruCache
from ..core.types import Json
from ..logs import get_logger
from ..tools.tool_function import ToolError
from .failures import failed
from .platform import AuthenticationRequiredError
from .provider_specs import WEB_SEARCHES

logger = get_logger(__name__)

_FILTER_THEMSELVES: Final = WEB_SEARCHES | {
    "remote::exa-search",
    "remote::serply-search",
    "remote::nimble-search",
}
"""Providers that restrict a search to `allowed_domains`; for the rest, the query contains the domains."""


_MAX_KNOWN_TOOLS: Final = 1_024
"""Users and credentials for which it is remembered that a tool was found."""

_LookupKey = tuple[bytes, str]
"""The requester, and the name of a tool or of a group."""


class HostToolRuntime:
    """Calls tools through the host's router.

    Args:
        router: the host's implementation of its tool runtime API.
        requester_key: returns what differs between requests with different users or credentials.
        listing_seconds: time limit of listing the tools of one group.
    """

    def __init__(self, router: Any, requester_key: Callable[[], bytes], listing_seconds: float = 10.0) -> None:
        self._router = router
        self._requester_key = requester_key
        self._listing_seconds = listing_seconds
        self._known = LruCache[_LookupKey, bool](_MAX_KNOWN_TOOLS)
        self._listings: dict[_LookupKey, asyncio.Task[Collection[str]]] = {}

    async def has(self, name: str) -> bool:
        """Return whether one of the stack's tool groups has a tool of this name.

        Groups are listed at the same time: an MCP server behind one of them may not answer. Each is listed once for all
        requests that wait and have the same user and credentials, since the host lists with those of one request. A
        group that needs other credentials is left out.

        Raises:
            ApiError: 503 if the tool is not found, and the host cannot list the tools of a group.
        """
        requester_key = self._requester_key()
        if self._known.get((requester_key, name)):
            return True
        try:
            groups = await self._router.routing_table.list_tool_groups()
            exists = await _find(name, {self._listing(requester_key, group.identifier) for group in groups.data})
        except Exception as error:
            raise failed("list of tools", "tools", error) from error
        if exists:
            self._known.set((requester_key, name), True)
        return exists

    def _listing(self, requester_key: bytes, group: str) -> asyncio.Task[Collection[str]]:
        """Return the task that lists the tools of a group; the host remembers those of a group that it has listed."""
        key = (requester_key, group)
        task = self._listings.get(key)
        if task is None:
            task = self._listings[key] = asyncio.create_task(self._list(group))
            task.add_done_callback(lambda task: self._listed(key, task))
        return task

    def _listed(self, key: _LookupKey, task: asyncio.Task[Collection[str]]) -> None:
        del self._listings[key]
        if not task.cancelled():
            # Every request that waited may have ended.
            task.exception()

    async def _list(self, group: str) -> Collection[str]:
        try:
            async with asyncio.timeout(self._listing_seconds):
                listed = await self._router.list_runtime_tools(tool_group_id=group)
        except AuthenticationRequiredError:
            return ()
        return {tool.name for tool in listed.data}

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


async def _find(name: str, pending: set[asyncio.Task[Collection[str]]]) -> bool:
    """Return whether one of the listings has the name; if none has it, raise the error of one that failed."""
    error: BaseException | None = None
    while pending:
        ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            if task.exception():
                error = task.exception()
            elif name in task.result():
                return True
    if error:
        raise error
    return False


def _failure(name: str, error: Exception) -> ToolError:
    # The exceptions' messages may contain the request, including keys.
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        logger.warning("tool failed: %r (status %s from its service)", name, status)
        return ToolError(f"The service behind the tool '{name}' answered {status}.")
    logger.warning("tool failed: %r (%s)", name, type(error).__name__)
    if isinstance(error, ValueError) and "API Key" in str(error):
        return ToolError(f"The tool '{name}' has no API key for its service.")
    return ToolError(f"The tool '{name}' failed ({type(error).__name__}).")


def _text(content: Any) -> str:
    """Return the text of the host's interleaved content."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(part if isinstance(part, str) else getattr(part, "text", "") for part in parts)


async def forget_tool_groups_without_provider(router: Any) -> None:
    """Delete tool groups whose provider is no longer in the configuration.

    llama-stack would otherwise fail to start with another provider for such a group: it asks the removed provider to
    unregister it.

    Args:
        router: the host's implementation of its tool runtime API.
    """
    table = router.routing_table
    for each in await table.dist_registry.get_all():
        if each.type == "tool_group" and each.provider_id not in table.impls_by_provider_id:
            logger.info("removed a tool group without a provider: %r", each.identifier)
            await table.dist_registry.delete(each.type, each.identifier)
