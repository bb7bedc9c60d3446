"""Web search in the form that gpt-oss knows: pages by cursor, links by id, lines by number."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.fetch.address_policy import AddressPolicy
from llama_stack_responses.fetch.fetcher import Fetcher, FetchLimits
from llama_stack_responses.fetch.pages import WebPages
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from tests.support.inference import Round, finish, text
from tests.support.waiting import until
from tests.support.web import Web
from tests.unit.features.web_search.searches import search_of
from tests.unit.tools.tools_harness import ToolsHarness, calls

Json = dict[str, Any]

ANSWER: Round = [text("Done."), finish()]
OTTERS = """<html><head><title>All about otters</title></head><body><article><p>Otters live in rivers and on coasts.</p>
<p>They sleep hand in hand, so that nobody drifts apart while all of them are asleep on the water 【3†x】.</p>
<p>They eat <a href="/fish">fish</a> and crabs, and they crack shells with stones that they carry.</p></article></body>
</html>"""
PAGES = WebPages(
    Fetcher(AddressPolicy([ip_network("127.0.0.1/32")]), FetchLimits(200_000, 20, 3)),
    WorkerPool(PoolLimits()),
    60,
    Admission(Quota("files, pages and running outputs", 2**30, 2**30)),
)


class Runtime:
    """A tool runtime of the stack whose web search finds the given results."""

    def __init__(self, *found: tuple[str, str, str]) -> None:
        self._found = found

    async def has(self, name: str) -> bool:
        return name == "web_search"

    async def invoke(self, name: str, arguments: Json) -> str:
        results = [{"url": url, "title": title, "content": snippet} for url, title, snippet in self._found]
        return json.dumps({"query": arguments["query"], "results": results})


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as web:
        web.say("/otters", OTTERS)
        web.say("/fish", "Fish\nswim.", "text/plain")
        yield web


def browsing(web: Web, *rounds: Round, **fields: Any) -> ToolsHarness:
    found = [(web.url("/otters"), "Otters 【1】", "They hold hands."), (web.url("/fish"), "Fish", "They swim.")]
    return ToolsHarness(
        search_of(Runtime(*found), PAGES), rounds, model="gpt-oss", tools=[{"type": "web_search"}], **fields
    )


def actions(response: Json) -> list[Json]:
    return [item["action"] for item in response["output"] if item["type"] == "web_search_call"]


async def test_search_open_and_find_use_cursors_and_citations(web: Web) -> None:
    harness = browsing(
        web,
        calls(("browser.search", {"query": "otters", "topn": 10, "source": "news"})),
        calls(("browser.open", {"id": 0})),
        calls(("browser.find", {"pattern": "HAND"})),
        calls(("browser.open", {"id": 0, "cursor": 2, "num_lines": 2})),
        calls(("browser.open", {"cursor": 1, "id": 0})),
        calls(("browser.open", {"cursor": 1, "loc": 3, "num_lines": 1})),
        [text("So it is【1†L3-L4】【2†L4】【4†L2】【0†L3】."), finish()],
    )
    response = await harness.run()
    otters, fish = web.url("/otters"), web.url("/fish")
    assert set(harness.offered()) == {"browser.search", "browser.open", "browser.find"}
    assert actions(response) == [
        {"type": "search", "query": "otters", "queries": ["otters"]},
        {"type": "open_page", "url": otters},
        {"type": "find_in_page", "url": otters, "pattern": "HAND"},
        {"type": "open_page", "url": otters},
        {"type": "open_page", "url": fish},
        {"type": "open_page", "url": otters},
    ]
    results, opened, found, at_match, linked, scrolled = harness.tool_outputs()
    assert results.splitlines() == [
        "[0] otters (web-search://otters)",
        "**viewing lines [0 - 9] of 9**",
        "",
        "L0: ",
        "L1: # Search results",
        "L2: 【0†Otters [1]†127.0.0.1】",
        f"L3: {otters}",
        "L4: They hold hands.",
        "L5: ",
        "L6: 【1†Fish†127.0.0.1】",
        f"L7: {fish}",
        "L8: They swim.",
        "L9: ",
    ]
    assert opened.splitlines()[0] == f"[1] All about otters ({otters})"
    assert f"L1: URL: {otters}\nL2: Otters live in rivers and on coasts.\nL3: They sleep hand in hand, so" in opened
    assert "[3†x]" in opened
    assert "【0†fish†127.0.0.1】 and crabs" in opened
    assert all(len(line) < 100 for line in opened.splitlines()[2:])
    assert found.startswith(f"[2] Find results for text: `HAND` in `All about otters` ({otters})\n")
    assert "L3: # 【0†match at L3】\nL4: They sleep hand in hand" in found
    assert "**viewing lines [3 - 4] of" in at_match
    assert linked.startswith(f"[4] 127.0.0.1 ({fish})")
    assert scrolled.splitlines()[3].startswith("L3: They sleep hand in hand")
    [part] = response["output"][-1]["content"]
    assert [(each["url"], each["title"]) for each in part["annotations"]] == [
        (otters, "All about otters"),
        (otters, "All about otters"),
        (fish, "127.0.0.1"),
        (otters, "Otters [1]"),
    ]
    assert "【" not in part["text"]


async def test_cursors_continue_over_chain(web: Web) -> None:
    first = browsing(
        web,
        calls(("browser.search", {"query": "otters"})),
        calls(("browser.open", {"id": 0})),
        calls(("browser.find", {"pattern": "hand"})),
        ANSWER,
    )
    await first.run()
    second = browsing(
        web,
        calls(("browser.open", {"id": 1, "cursor": 0})),
        calls(("browser.open", {"id": 0, "cursor": 2, "num_lines": 1})),
        calls(("browser.open", {"id": 0, "cursor": 1})),
        [text("It is so【1†L3】【0†L6-L7】【3†L0】【9†L1】."), finish()],
        history=first.history,
    )
    response = await second.run()
    fish, at_match, linked = second.tool_outputs()[-3:]
    assert fish.startswith(f"[3] 127.0.0.1 ({web.url('/fish')})")
    assert at_match.splitlines()[3].startswith("L3: They sleep hand in hand")
    assert linked.startswith(f"[5] 127.0.0.1 ({web.url('/fish')})")
    [part] = response["output"][-1]["content"]
    assert [each["url"] for each in part["annotations"]] == [web.url("/otters"), web.url("/fish"), web.url("/fish")]
    assert "【" not in part["text"]


async def test_invalid_browser_calls_fail(web: Web) -> None:
    harness = browsing(
        web,
        calls(("browser.open", {})),
        calls(("browser.open", {"id": 3})),
        calls(("browser.find", {"pattern": "a"})),
        calls(("browser.open", {"id": "file:///etc/passwd"})),
        calls(("browser.search", {"query": "otters"})),
        calls(("browser.open", {"id": 7, "cursor": "x", "loc": "y"})),
        calls(("browser.search", {})),
        ANSWER,
    )
    response = await harness.run()
    items = [item for item in response["output"] if item["type"] == "web_search_call"]
    assert [item["status"] for item in items] == [*["failed"] * 4, "completed", "failed", "failed"]
    assert "There is no such link" in harness.tool_outputs()[0]
    assert "Open one before" in harness.tool_outputs()[2]
    assert "are not valid for 'browser.search'" in harness.tool_outputs()[-1]


async def test_url_is_opened_directly(web: Web) -> None:
    harness = browsing(web, calls(("browser.open", {"id": web.url("/fish"), "loc": 99})), ANSWER)
    response = await harness.run()
    assert actions(response) == [{"type": "open_page", "url": web.url("/fish")}]
    assert harness.tool_outputs()[0].splitlines()[3:] == ["L3: swim."]


async def test_other_models_get_plain_functions() -> None:
    other = ToolsHarness(search_of(Runtime(), PAGES), [ANSWER], tools=[{"type": "web_search"}])
    await other.run()
    assert set(other.offered()) == {"web_search", "open_page", "find_in_page"}


async def test_pages_count_until_response_ends(web: Web) -> None:
    ends = asyncio.Event()
    harness = browsing(web, calls(("browser.open", {"id": web.url("/otters")})), [ends, text("Done."), finish()])
    running = asyncio.create_task(harness.run())
    await until(lambda: len(harness.inference.requests) == 2)
    assert PAGES.contents.held > 0
    ends.set()
    await running
    assert PAGES.contents.held == 0


async def test_links_beyond_limit_are_shown_as_written(web: Web) -> None:
    links = "".join(f'<p>Otters like <a href="/{number}">river {number}</a> very much.</p>' for number in range(2_100))
    web.say("/links", f"<html><body><article>{links}</article></body></html>")
    harness = browsing(web, calls(("browser.open", {"id": web.url("/links"), "loc": 1990})), ANSWER)
    await harness.run()
    [output] = harness.inference.requests[1]["messages"][-1:]
    assert "【1999†river 1999†127.0.0.1】" in output["content"]
    assert f"[river 2000]({web.url('/2000')})" in output["content"]


async def test_links_of_earlier_page_are_followed(web: Web) -> None:
    for number in range(6):
        web.say(f"/{number}", OTTERS.replace("/fish", f"/fish-{number}"))
        web.say(f"/fish-{number}", f"Fish {number}.", "text/plain")
    opening = [calls(("browser.open", {"id": web.url(f"/{number}")})) for number in range(6)]
    harness = browsing(web, *opening, calls(("browser.open", {"cursor": 0, "id": 0})), ANSWER)
    await harness.run()
    assert "Fish 0." in harness.inference.requests[-1]["messages"][-1]["content"]
    assert [request.path for request in web.seen].count("/0") == 1
