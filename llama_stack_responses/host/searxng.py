"""A provider of the host's tool runtime API: web search with a SearXNG server, without an API key."""

from __future__ import annotations

from typing import Annotated, Any, Final

import httpx
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ..core.setting_values import address
from ..fetch.response_bodies import UNCOMPRESSED, BodyTooLarge, decoded, read_body
from .search_provider import SearchFailed, SearchProvider

_MAX_BYTES: Final = 2 << 20
"""Maximum size of an answer."""
_TOO_LARGE: Final = "The SearXNG server's answer is larger than this server accepts."
_NO_JSON: Final = (
    "The SearXNG server refuses to answer in JSON. Its operator has to add 'json' to 'search.formats' in its "
    "settings.yml, and to let this server pass if its limiter is on."
)


class SearxngConfig(BaseModel):
    """Configuration of the provider `remote::searxng`.

    Attributes:
        url: URL of the server, such as `http://localhost:8888`; `json` must be among its `search.formats`.
        max_results: number of results of a search, if the request does not specify it.
        language: a language such as `en` or `de-CH`; null uses the server's setting.
        categories: names of categories, as SearXNG has them; empty uses the server's setting.
        engines: names of search engines, as SearXNG has them; empty uses the server's setting.
        safe_search: 0 for none, 1 for moderate, 2 for strict; null uses the server's setting.
        timeout_seconds: timeout of the server.
    """

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, AfterValidator(address("http", "https"))] = Field(examples=["http://localhost:8888"])
    max_results: int = Field(default=6, ge=1)
    language: str | None = None
    categories: list[str] = Field(default_factory=list)
    engines: list[str] = Field(default_factory=list)
    safe_search: int | None = Field(default=None, ge=0, le=2)
    timeout_seconds: float = Field(default=20.0, gt=0)

    @classmethod
    def sample_run_config(cls, **_: Any) -> dict[str, Any]:
        """Return the settings that the host writes into a generated configuration."""
        return {"url": "${env.SEARXNG_URL:=http://localhost:8888}"}


class SearxngToolRuntime(SearchProvider):
    """Searches with SearXNG's own API."""

    def __init__(self, config: SearxngConfig) -> None:
        super().__init__(config.max_results)
        self._config = config
        self._client: httpx.AsyncClient | None = None

    async def shutdown(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client:
            await client.aclose()

    async def _find(self, query: str, _: int) -> list[dict[str, Any]]:
        params = {"q": query, "format": "json", **self._parameters()}
        async with self._http().stream("GET", "search", params=params) as answer:
            if answer.status_code in (403, 429):
                raise SearchFailed(_NO_JSON, answer.status_code)
            answer.raise_for_status()
            try:
                results: list[dict[str, Any]] = (await decoded(await read_body(answer, _MAX_BYTES)))["results"]
            except BodyTooLarge:
                raise SearchFailed(_TOO_LARGE) from None
        return results

    def _parameters(self) -> dict[str, Any]:
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
    """Build the provider. The host calls this."""
    return SearxngToolRuntime(config)
