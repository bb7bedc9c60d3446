"""A chat request's tools, carried past the host's inference router.

It checks every tool of every request with a validator that it builds anew for each, which takes longer than all that
this package does with a tool. Ours were checked when they came, so only the provider is shown them.
"""

from __future__ import annotations

import copy
from typing import Any

Json = dict[str, Any]


def carried(router: Any, tools: Json) -> Any:
    """The inference router, for one request that was made without its tools.

    Args:
        tools: the fields that the provider is to get besides.
    """
    router = copy.copy(router)
    router.routing_table = _Table(router.routing_table, tools)
    return router


class _Table:
    """The routing table, whose providers carry the tools."""

    def __init__(self, table: Any, tools: Json) -> None:
        self._table = table
        self._tools = tools

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    @property
    def impls_by_provider_id(self) -> dict[str, Any]:
        return {name: _Provider(each, self._tools) for name, each in self._table.impls_by_provider_id.items()}

    async def get_provider_impl(self, *args: Any) -> Any:
        return _Provider(await self._table.get_provider_impl(*args), self._tools)


class _Provider:
    """An inference provider that finds the tools in its request."""

    def __init__(self, provider: Any, tools: Json) -> None:
        self._provider = provider
        self._tools = tools

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def openai_chat_completion(self, params: Any) -> Any:
        for name, value in self._tools.items():
            setattr(params, name, value)
        return await self._provider.openai_chat_completion(params)
