"""A provider of the host's tool runtime API: web search with public search engines, without an API key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.request import getproxies_environment

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ..core.errors import ApiError
from ..core.setting_values import address
from ..fetch.response_bodies import decoded
from ..process_pool.pool import PoolLimits, Task, WorkerPool
from .search_provider import SearchFailed, SearchProvider

_TASK: Final = "llama_stack_responses.tools.hosted.ddgs_task"
_REQUESTS_PER_SEARCH: Final = 4
"""Consecutive requests that fit into the time limit of a search; each gets this fraction of it."""
_ANSWER_BYTES: Final = 1 << 20
_NOT_INSTALLED: Final = (
    "The web search provider 'remote::ddgs' needs the package 'ddgs': pip install 'llama-stack-responses[ddgs]'."
)


class DdgsConfig(BaseModel):
    """Configuration of the provider `remote::ddgs`.

    Attributes:
        service: always `ddgs`; the templates put WEB_SEARCH here, so that another value is refused.
        engines: names of search engines, as the package `ddgs` has them, such as `duckduckgo` or `brave`; empty leaves
            the choice to the package, which queries one after the other until it has enough results.
        region: country and language, such as `us-en` or `de-de`.
        safe_search: `on`, `moderate` or `off`.
        max_results: number of results of a search, if the request does not specify it.
        timeout_seconds: time limit of a search.
        concurrency: maximum number of concurrent searches; more wait.
        proxy: the address of a proxy, such as `http://proxy.internal:3128` or `socks5h://127.0.0.1:9150`; null uses the
            environment's HTTPS_PROXY.
        ca_file: file with the trusted certificate authorities, which a proxy that intercepts TLS needs; null uses the
            environment's SSL_CERT_FILE, or the default ones.
    """

    model_config = ConfigDict(extra="forbid")

    service: Literal["ddgs"] = "ddgs"
    engines: list[str] = Field(default_factory=list)
    region: str = Field(default="us-en", pattern=r"^[a-z]{2}-[a-z]{2}$")
    safe_search: Literal["on", "moderate", "off"] = "moderate"
    max_results: int = Field(default=6, ge=1)
    timeout_seconds: float = Field(default=20.0, gt=0)
    concurrency: int = Field(default=4, ge=1)
    proxy: Annotated[str, AfterValidator(address("http", "https", "socks5", "socks5h"))] | None = None
    ca_file: Path | None = None

    @classmethod
    def sample_run_config(cls, **_: Any) -> dict[str, Any]:
        """Return the settings that the host writes into a generated configuration."""
        return {}


class DdgsToolRuntime(SearchProvider):
    """Searches with the package `ddgs`, in a new worker process for each search."""

    def __init__(self, config: DdgsConfig) -> None:
        super().__init__(config.max_results)
        self._config = config
        self._pool = WorkerPool(PoolLimits(concurrency=config.concurrency))

    async def shutdown(self) -> None:
        """End the worker processes."""
        await self._pool.close()

    async def _find(self, query: str, count: int) -> list[dict[str, Any]]:
        config = self._config
        options = {
            "engines": config.engines,
            "region": config.region,
            "safe_search": config.safe_search,
            "count": count,
            # Worker processes start with an empty environment.
            "proxy": config.proxy or getproxies_environment().get("https"),
            "ca_file": str(config.ca_file.expanduser()) if config.ca_file else os.environ.get("SSL_CERT_FILE"),
            "seconds": max(1, round(config.timeout_seconds / _REQUESTS_PER_SEARCH)),
        }
        task = Task(_TASK, query.encode(errors="replace"), config.timeout_seconds, _ANSWER_BYTES, options)
        try:
            answer = await self._pool.run(task)
        except ApiError as error:
            raise SearchFailed("No search can be started at the moment. Try again.", error.status) from None
        if "problem" in answer:
            raise SearchFailed(_why(answer, config.timeout_seconds))
        results: list[dict[str, Any]] = await decoded(answer["text"].encode())
        return results


def _why(answer: Mapping[str, str], seconds: float) -> str:
    """Return the message for a search that failed."""
    match answer["problem"]:
        case "engines":
            return (
                f"The setting 'engines' of the provider 'remote::ddgs' names unknown search engines "
                f"({answer['unknown']}); there are: {answer['known']}."
            )
        case "failures":
            return f"No search engine has results ({answer['failures']}). Try again later."
        case "seconds":
            return f"No search engine answered within {seconds:g} seconds."
    return "The search engines' answers cannot be read."


async def get_adapter_impl(config: DdgsConfig, _: dict[Any, Any]) -> DdgsToolRuntime:
    """Build the provider. The host calls this.

    Raises:
        ValueError: the package `ddgs` is not installed.
    """
    if find_spec("ddgs") is None:
        raise ValueError(_NOT_INSTALLED)
    return DdgsToolRuntime(config)
