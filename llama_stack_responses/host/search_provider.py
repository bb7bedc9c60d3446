"""The common base of the web search providers of this package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import orjson

from ..fetch.hosts import is_within
from .platform import ListToolDefsResponse, ToolDef, ToolInvocationResult

_READ_RESULTS: Final = 500
"""Results of a service that are looked at."""
_TEXT_CHARACTERS: Final = 20_000
"""Characters of a title or a snippet that are passed on, which is as much as is read of them."""
_COUNTS: Final = {"low": 3, "medium": 6, "high": 12}
_QUERY: Final = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What to search for."}},
    "required": ["query"],
}


class SearchFailed(Exception):  # noqa: N818 (the answer, not a defect)
    """A search failed.

    Args:
        message: the message for the model and the log.
        code: the HTTP status of the service, or 502.
    """

    def __init__(self, message: str, code: int = 502) -> None:
        super().__init__(message)
        self.code = code


class SearchProvider(ABC):
    """A provider of the host's tool runtime API with a single tool, `web_search`.

    Args:
        max_results: number of results of a search, if the request does not specify it.
    """

    def __init__(self, max_results: int) -> None:
        self._max_results = max_results

    async def initialize(self) -> None:
        """Do nothing: the host calls this in another event loop than the serving one."""

    @abstractmethod
    async def shutdown(self) -> None:
        """Release open resources."""

    @abstractmethod
    async def _find(self, query: str, count: int, /) -> Iterable[Mapping[str, Any]]:
        """Return results, the best first, each with `title`, `url` and `content`.

        Args:
            count: number of results.

        Raises:
            SearchFailed: the search failed.
        """

    async def register_toolgroup(self, toolgroup: Any) -> None:
        """Do nothing: a tool group needs no registration."""

    async def unregister_toolgroup(self, toolgroup_id: str) -> None:
        """Do nothing: a tool group needs no registration."""

    async def list_runtime_tools(
        self, tool_group_id: str | None = None, mcp_endpoint: Any = None, authorization: str | None = None
    ) -> ListToolDefsResponse:
        """Return the tool `web_search`."""
        tool = ToolDef(name="web_search", description="Search the web for information", input_schema=_QUERY)
        return ListToolDefsResponse(data=[tool])

    async def invoke_tool(
        self, tool_name: str, kwargs: dict[str, Any], authorization: str | None = None
    ) -> ToolInvocationResult:
        """Search the web.

        Args:
            kwargs: `query`; optionally `allowed_domains` and `search_context_size`, as in OpenAI's web search.
        """
        query: str = kwargs["query"]
        domains: Sequence[str] = kwargs.get("allowed_domains") or ()
        restricted = f"{query} ({' OR '.join(f'site:{domain}' for domain in domains)})" if domains else query
        count = _COUNTS.get(kwargs.get("search_context_size") or "", self._max_results)
        try:
            entries = await self._find(restricted, count)
        except SearchFailed as error:
            return ToolInvocationResult(error_code=error.code, error_message=str(error))
        matching = (each for each in islice(entries, _READ_RESULTS) if not domains or is_within(each["url"], domains))
        results = [_shown(each) for each in islice(matching, count)]
        return ToolInvocationResult(
            content=orjson.dumps({"query": query, "results": results}).decode(),
            metadata={"query": query, "sources": [{"url": each["url"]} for each in results]},
        )


def _shown(result: Mapping[str, Any]) -> dict[str, Any]:
    content = result.get("content")
    return {
        "title": str(result["title"] or "")[:_TEXT_CHARACTERS],
        "url": result["url"],
        "content": content[:_TEXT_CHARACTERS] if isinstance(content, str) else "",
    }
