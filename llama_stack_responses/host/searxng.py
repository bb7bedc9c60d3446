"""A provider of the host's tool runtime API: web search by a SearXNG server, which needs no key."""

from __future__ import annotations

from typing import Annotated, Any, Final

import httpx
import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from llama_stack_responses.config import address
from llama_stack_responses.fetch.bodies import UNCOMPRESSED, read_body
from llama_stack_responses.tools.search_results import is_within

from .platform import ListToolDefsResponse, ToolDef, ToolInvocationResult

_MOST_BYTES: Final = 8 << 20
"""Bytes of an answer, at most."""
_COUNTS: Final = {"low": 3, "medium": 6, "high": 12}
_QUERY: Final = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What to search for."}},
    "required": ["query"],
}
_NO_JSON: Final = (
    "The SearXNG server refuses to answer in JSON. Its operator has to add 'json' to 'search.formats' in its "
    "settings.yml, and to let this server pass if its limiter is on."
)


class SearxngConfig(BaseModel):
    """Configuration of the provider `remote::searxng`.

    Attributes:
        url: where the server is, such as `http://localhost:8888`; `json` must be among its `search.formats`.
        max_results: results of a search, where the request does not say how much it wants.
        language: a language such as `en` or `de-CH`; null leaves it to the server.
        categories, engines: names, as SearXNG has them; empty leaves them to the server.
        safe_search: 0 for none, 1 for moderate, 2 for strict; null leaves it to the server.
        timeout_seconds: how long the server may take.
    """

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, AfterValidator(address("http", "https"))]
    max_results: int = Field(default=6, ge=1)
    language: str | None = None
    categories: list[str] = Field(default_factory=list)
    engines: list[str] = Field(default_factory=list)
    safe_search: int | None = Field(default=None, ge=0, le=2)
    timeout_seconds: float = Field(default=20.0, gt=0)

    @classmethod
    def sample_run_config(cls, **_: Any) -> dict[str, Any]:
        """What the host writes into a configuration that it makes."""
        return {"url": "${env.SEARXNG_URL:=http://localhost:8888}"}


class SearxngToolRuntime:
    """The tool `web_search`."""

    def __init__(self, config: SearxngConfig) -> None:
        self._config = config
        self._client: httpx.AsyncClient | None = None

    async def initialize(self) -> None:
        """Does nothing: the host calls it in another event loop than the one that serves."""

    async def shutdown(self) -> None:
        """Closes the connections."""
        client, self._client = self._client, None
        if client:
            await client.aclose()

    async def register_toolgroup(self, toolgroup: Any) -> None:
        """There is nothing to do for a tool group."""

    async def unregister_toolgroup(self, toolgroup_id: str) -> None:
        """There is nothing to do for a tool group."""

    async def list_runtime_tools(
        self, tool_group_id: str | None = None, mcp_endpoint: Any = None, authorization: str | None = None
    ) -> ListToolDefsResponse:
        """The one tool."""
        tool = ToolDef(name="web_search", description="Search the web for information", input_schema=_QUERY)
        return ListToolDefsResponse(data=[tool])

    async def invoke_tool(
        self, tool_name: str, kwargs: dict[str, Any], authorization: str | None = None
    ) -> ToolInvocationResult:
        """Searches.

        Args:
            kwargs: `query`; if wanted, `allowed_domains` and `search_context_size` as OpenAI's web search has them.
        """
        query, domains = kwargs["query"], kwargs.get("allowed_domains") or ()
        asked = f"{query} ({' OR '.join(f'site:{domain}' for domain in domains)})" if domains else query
        params = {"q": asked, "format": "json", **self._wishes()}
        async with self._http().stream("GET", "search", params=params) as answer:
            if answer.status_code in (403, 429):
                return ToolInvocationResult(error_code=answer.status_code, error_message=_NO_JSON)
            answer.raise_for_status()
            said = orjson.loads(await read_body(answer, _MOST_BYTES))
        count = _COUNTS.get(kwargs.get("search_context_size") or "", self._config.max_results)
        found = [each for each in said["results"] if not domains or is_within(each["url"], domains)][:count]
        results = [{"title": each["title"], "url": each["url"], "content": each.get("content", "")} for each in found]
        return ToolInvocationResult(
            content=orjson.dumps({"query": query, "results": results}).decode(),
            metadata={"query": query, "sources": [{"url": each["url"]} for each in results]},
        )

    def _wishes(self) -> dict[str, Any]:
        config = self._config
        wishes = {
            "language": config.language,
            "categories": ",".join(config.categories) or None,
            "engines": ",".join(config.engines) or None,
            "safesearch": config.safe_search,
        }
        return {name: value for name, value in wishes.items() if value is not None}

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            base = self._config.url.rstrip("/") + "/"
            headers = {"accept": "application/json", **UNCOMPRESSED}
            self._client = httpx.AsyncClient(base_url=base, timeout=self._config.timeout_seconds, headers=headers)
        return self._client


async def get_adapter_impl(config: SearxngConfig, _: dict[Any, Any]) -> SearxngToolRuntime:
    """What the host calls to build the provider."""
    return SearxngToolRuntime(config)
