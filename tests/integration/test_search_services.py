"""Every search service with a provider in the host: the host's code, over TLS through a proxy that answers in the
service's format."""

import importlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llama_stack_responses.features.web_search.search_results import Result, results_of
from llama_stack_responses.tools.tool_function import ToolError
from tests.support.certificates import Certificates
from tests.support.search import SERVICES
from tests.support.stack import Host
from tests.support.web import Answer, ReceivedRequest, Web

pytestmark = pytest.mark.live

FOUND = [
    ("https://otters.example/", "Otters", "Otters sleep hand in hand & float."),
    ("https://fish.example/a?b=c&d", "Fish", "Fish <swim> all day."),
    ("https://news.example/", "News", "Who eats fish? Otters do."),
]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of all services."""
    return Certificates.create_in(tmp_path_factory.mktemp("tls"), [host for host, _ in SERVICES.values()])


@pytest.fixture
def proxy(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A proxy that is set in this process's environment."""
    with Web(intercepts=certificates.of_server()) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url(""))
        monkeypatch.setenv("SSL_CERT_FILE", certificates.path("ca.pem"))
        yield proxy


class Router:
    """A stand-in for the host's router, with one provider."""

    def __init__(self, provider: Any) -> None:
        self.routing_table = self
        self._provider = provider

    async def get_provider_impl(self, _: str) -> Any:
        return self._provider

    async def invoke_tool(self, name: str, kwargs: Any) -> Any:
        return await self._provider.invoke_tool(name, kwargs)


@asynccontextmanager
async def searching(host: Host, service: str) -> AsyncIterator[Any]:
    """Yield this package's wrapper of the host's provider of a service, or None where the host has none."""
    # The host must be imported before the modules that detect it.
    registry = importlib.import_module(f"{'ogx' if host == 'ogx' else 'llama_stack'}.providers.registry.tool_runtime")
    from llama_stack_responses.host.tool_runtime import HostToolRuntime

    spec = next((spec for spec in registry.available_providers() if spec.module.endswith(f".{service}")), None)
    if spec is None:
        assert host == "llama_stack"  # OGX has all of them
        yield None
        return
    module, _, name = spec.config_class.rpartition(".")
    runtime = getattr(importlib.import_module(module), name)(api_key="secret")
    provider = await importlib.import_module(spec.module).get_adapter_impl(runtime, {})
    provider.__provider_spec__ = spec
    await provider.initialize()
    yield HostToolRuntime(Router(provider), lambda: b"")
    if hasattr(provider, "shutdown"):
        await provider.shutdown()


@pytest.mark.parametrize("service", SERVICES)
async def test_search_service_results_are_read(host: Host, proxy: Web, service: str) -> None:
    server, form = SERVICES[service]

    def answer(request: ReceivedRequest) -> Answer:
        query = request.query.get("q") or request.json()["query"]
        return Answer(json.dumps(form(query, FOUND)).encode(), headers={"content-type": "application/json"})

    proxy.answer_all = answer
    async with searching(host, service) as search:
        if search:
            results = results_of(await search.invoke("web_search", {"query": "otters"}))
            assert results == [Result(url, title, text) for url, title, text in FOUND]
            [request] = proxy.seen
            assert request.headers["host"] == server
            assert "secret" in f"{request.headers}{request.body!r}"


@pytest.mark.parametrize("service", SERVICES)
async def test_search_service_query_has_the_allowed_domains(host: Host, proxy: Web, service: str) -> None:
    _, form = SERVICES[service]
    proxy.answer_all = lambda _: Answer(json.dumps(form("otters", FOUND)).encode())
    async with searching(host, service) as search:
        if search:
            await search.invoke("web_search", {"query": "otters", "allowed_domains": ["a.example", "b.example"]})
            [request] = proxy.seen
            sent = (json.dumps(request.query) + request.body.decode()).replace(", ", ",")
            assert "otters (site:a.example OR site:b.example)" in sent or '["a.example","b.example"]' in sent


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("status", [401, 429, 500])
async def test_search_service_error_does_not_contain_the_key(host: Host, proxy: Web, service: str, status: int) -> None:
    proxy.answer_all = lambda _: Answer(b'{"error": "the key secret is wrong"}', status)
    async with searching(host, service) as search:
        if search:
            with pytest.raises(ToolError) as caught:
                await search.invoke("web_search", {"query": "otters"})
            assert "secret" not in str(caught.value)
            assert str(status) in str(caught.value) or "key is missing or invalid" in str(caught.value)
