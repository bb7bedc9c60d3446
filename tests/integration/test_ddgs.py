"""Web search by the real package `ddgs`, over TLS through a proxy that answers in each search engine's format."""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib import import_module
from itertools import repeat
from threading import Event
from typing import Any
from urllib.parse import parse_qs

import pytest

from llama_stack_responses.features.web_search.search_results import Result, results_of
from tests.support.certificates import Certificates
from tests.support.search import ENGINES
from tests.support.stack import Host
from tests.support.web import Answer, ReceivedRequest, Web

pytestmark = pytest.mark.live

FOUND = [
    ("https://otters.example/wiki/Otters", "Otters", "Otters sleep hand in hand & float."),
    ("https://fish.example/a?b=c&d", "Otters and fish", "Fish swim away from otters."),
]
ONE_RESULT = ("wikipedia", "grokipedia")
"""The engines from which the package requests one result."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of all engines."""
    hosts = [*(host for host, _ in ENGINES.values()), "www.duckduckgo.com", "elsewhere.example"]
    return Certificates.create_in(tmp_path_factory.mktemp("tls"), hosts)


@pytest.fixture
def proxy(certificates: Certificates) -> Iterator[Web]:
    """A proxy that answers for all servers."""
    with Web(intercepts=certificates.of_server()) as proxy:
        yield proxy


@asynccontextmanager
async def searching(host: Host, proxy: Web, certificates: Certificates, **settings: Any) -> AsyncIterator[Any]:
    """Build the provider as the host does."""
    # The host must be imported before the modules that detect it.
    import_module("ogx.core.stack" if host == "ogx" else "llama_stack.core.stack")
    module = import_module("llama_stack_responses.host.ddgs")
    where = {"proxy": proxy.url(""), "ca_file": certificates.path("ca.pem")}
    provider = await module.get_adapter_impl(module.DdgsConfig(**where, **settings), {})
    try:
        yield provider
    finally:
        await provider.shutdown()


async def search(provider: Any, **more: Any) -> Any:
    """Search, and return the provider's result."""
    return await provider.invoke_tool("web_search", {"query": "otters", **more})


def search_query(request: ReceivedRequest) -> str:
    """Return the search query in a request's URL or form."""
    form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
    given = {**form, **request.query}
    return next((given[name] for name in ("q", "p", "search", "query") if name in given), "")


def play(proxy: Web, engine: str) -> str:
    """Script the results of an engine, and return its host name."""
    server, form = ENGINES[engine]
    kind = "application/json" if engine in ONE_RESULT else "text/html; charset=utf-8"
    proxy.answer_all = lambda request: Answer(form(search_query(request), FOUND), headers={"content-type": kind})
    return server


@pytest.mark.parametrize("engine", ENGINES)
async def test_ddgs_results_of_each_engine_are_read(
    host: Host, proxy: Web, certificates: Certificates, engine: str
) -> None:
    server = play(proxy, engine)
    async with searching(host, proxy, certificates, engines=[engine]) as provider:
        found = results_of((await search(provider)).content)
    if engine == "grokipedia":
        assert found == [Result("https://grokipedia.com/page/Otters", "Otters", FOUND[0][2])]
    else:
        assert found == [Result(*each) for each in FOUND[: 1 if engine in ONE_RESULT else 2]]
    assert {request.headers["host"] for request in proxy.seen} == {server}
    assert "otters" in search_query(proxy.seen[0])


async def test_ddgs_without_configured_engines_queries_several(
    host: Host, proxy: Web, certificates: Certificates
) -> None:
    forms = dict(ENGINES.values())

    def answer(request: ReceivedRequest) -> Answer:
        form = forms.get(request.headers["host"])
        return Answer(form(search_query(request), FOUND)) if form else Answer(status=404)

    proxy.answer_all = answer
    async with searching(host, proxy, certificates) as provider:
        found = results_of((await search(provider, search_context_size="low")).content)
    assert len(found) == 3
    assert len({request.headers["host"] for request in proxy.seen}) > 1


async def test_ddgs_allowed_domains_restrict_query_and_results(
    host: Host, proxy: Web, certificates: Certificates
) -> None:
    play(proxy, "duckduckgo")
    async with searching(host, proxy, certificates, engines=["duckduckgo"]) as provider:
        found = results_of((await search(provider, allowed_domains=["fish.example", "a.example"])).content)
    assert [each.url for each in found] == [FOUND[1][0]]
    assert search_query(proxy.seen[0]) == "otters (site:fish.example OR site:a.example)"


async def test_ddgs_empty_result_is_not_an_error(host: Host, proxy: Web, certificates: Certificates) -> None:
    proxy.answer_all = lambda _: Answer(b"<html><body>No results.</body></html>")
    async with searching(host, proxy, certificates, engines=["mojeek"]) as provider:
        result = await search(provider)
    assert (json.loads(result.content)["results"], result.error_message) == ([], None)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(b"Slow down.", 429), "status 429"),
        (Answer(repeat(b"x" * 2**20)), "an answer that is too large"),
        (Answer(b"", 302, {"location": "https://elsewhere.example/"}), "status 302"),
        (Answer(b"", 302, {"location": "http://169.254.169.254/"}), "status 302"),
        (Answer(b"", 302, {"location": "https://www.duckduckgo.com/again"}), "status 302"),
    ],
    ids=["refused", "endless", "sent elsewhere", "sent inside", "sent around"],
)
async def test_ddgs_failure_of_all_engines_names_the_reason(
    host: Host, proxy: Web, certificates: Certificates, answer: Answer, why: str
) -> None:
    proxy.answer_all = lambda _: answer
    async with searching(host, proxy, certificates, engines=["duckduckgo"]) as provider:
        result = await search(provider)
    assert result.error_message == f"No search engine has results ({why}). Try again later."
    assert {request.headers["host"] for request in proxy.seen} <= {"html.duckduckgo.com", "www.duckduckgo.com"}
    assert len(proxy.seen) <= 4


async def test_ddgs_redirect_within_the_site_is_followed(host: Host, proxy: Web, certificates: Certificates) -> None:
    _, form = ENGINES["duckduckgo"]
    moved = Answer(b"", 301, {"location": "https://www.duckduckgo.com/found"})
    proxy.answers = {"/html/": moved, "/found": Answer(form("", FOUND))}
    async with searching(host, proxy, certificates, engines=["duckduckgo"]) as provider:
        assert len(results_of((await search(provider)).content)) == 2


async def test_ddgs_engine_without_answer_times_out(host: Host, proxy: Web, certificates: Certificates) -> None:
    over = Event()
    proxy.answer_all = lambda _: Answer([over])
    # A request gets a quarter, rounded to seconds. A busy machine may need more than what is left of 5.5 for the rest.
    for seconds in (5.5, 22.0, 88.0):
        async with searching(host, proxy, certificates, engines=["brave"], timeout_seconds=seconds) as provider:
            slow = await search(provider)
        if "within" not in (slow.error_message or ""):
            break
    async with searching(host, proxy, certificates, engines=["brave"], timeout_seconds=0.5) as provider:
        stopped = await search(provider)
    over.set()
    assert slow.error_message == "No search engine has results (no answer in time). Try again later."
    assert stopped.error_message == "No search engine answered within 0.5 seconds."


async def test_ddgs_unknown_engine_is_named_in_the_error(host: Host, proxy: Web, certificates: Certificates) -> None:
    async with searching(host, proxy, certificates, engines=["brave", "altavista"]) as provider:
        result = await search(provider)
    assert "names unknown search engines (altavista); there are: " in result.error_message
    assert proxy.seen == []


async def test_missing_ddgs_package_is_named_with_its_extra(
    host: Host, proxy: Web, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ddgs", None)
    with pytest.raises(ValueError, match=r"pip install 'llama-stack-responses\[ddgs\]'"):
        async with searching(host, proxy, certificates):
            pass
