"""Web search with a SearXNG server that answers with much."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest

from llama_stack_responses.host.searxng import SearxngConfig, SearxngToolRuntime
from tests.support.search import searxng
from tests.support.thread_calls import calls_of_this_thread
from tests.support.web import Answer, Web


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with Web() as web:
        yield web


@pytest.fixture
async def runtime(web: Web) -> AsyncIterator[SearxngToolRuntime]:
    searxng_tool_runtime = SearxngToolRuntime(SearxngConfig(url=web.url("")))
    yield searxng_tool_runtime
    await searxng_tool_runtime.shutdown()


def answer_with(web: Web, found: Any) -> None:
    web.answers["/search"] = Answer(json.dumps(found).encode(), headers={"content-type": "application/json"})


def results(count: int, text: str, host: str = "other") -> list[tuple[str, str, str]]:
    return [(f"https://{host}{number}.example/", f"Page {number}", text) for number in range(count)]


async def test_large_answer_is_decoded_outside_of_the_event_loop(runtime: SearxngToolRuntime, web: Web) -> None:
    answer_with(web, searxng("x", results(2_000, "word " * 100)))
    with calls_of_this_thread() as called:
        found = await runtime.invoke_tool("web_search", {"query": "x"})
    assert len(orjson.loads(found.content)["results"]) == 6
    assert "_loads" not in called


async def test_long_texts_of_results_are_cut(runtime: SearxngToolRuntime, web: Web) -> None:
    answer_with(web, searxng("x", results(3, "x" * 300_000)))
    found = await runtime.invoke_tool("web_search", {"query": "x"})
    assert [len(each["content"]) for each in orjson.loads(found.content)["results"]] == [20_000] * 3


async def test_result_without_a_title_has_an_empty_one(runtime: SearxngToolRuntime, web: Web) -> None:
    answer_with(web, {"results": [{"url": "https://a.example/", "title": None, "content": None}]})
    found = await runtime.invoke_tool("web_search", {"query": "x"})
    assert orjson.loads(found.content)["results"] == [{"title": "", "url": "https://a.example/", "content": ""}]


async def test_only_the_first_results_are_compared_with_the_allowed_domains(
    runtime: SearxngToolRuntime, web: Web
) -> None:
    wanted = [("https://wanted.example/", "Wanted", "x")]
    for before, count in ((499, 1), (500, 0)):
        answer_with(web, searxng("x", [*results(before, "x"), *wanted]))
        found = await runtime.invoke_tool("web_search", {"query": "x", "allowed_domains": ["wanted.example"]})
        assert len(orjson.loads(found.content)["results"]) == count


@pytest.mark.parametrize("found", [{"results": [[]] * 70_000}, {"results": ["x" * 3_000_000]}], ids=["values", "bytes"])
async def test_answer_over_the_limits_is_an_error(runtime: SearxngToolRuntime, web: Web, found: Any) -> None:
    answer_with(web, found)
    answer = await runtime.invoke_tool("web_search", {"query": "x"})
    assert answer.error_message == "The SearXNG server's answer is larger than this server accepts."
