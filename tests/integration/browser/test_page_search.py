"""Search in the list of the built-in page: what is found, what is marked, and what of it is only text."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import Route

from tests.integration.browser.test_page_list import lists_only
from tests.support.browser import Browser, BrowserPage
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.wire import Wire

pytestmark = pytest.mark.live

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script></mark>"
MARKED = "id => [...document.querySelectorAll(`[data-id=${id}] mark`)].map((mark) => mark.textContent).join()"


def found_by_all_of_it(page: BrowserPage, words: str, response_id: str) -> None:
    """Search until the response is found by what is not among its first words: it is indexed after it is stored."""
    page.until(
        "async ([words, id]) => {"
        " const answer = await (await fetch(`/v1/ui/responses?text=${encodeURIComponent(words)}`)).json();"
        " return answer.data.some((row) => row.id === id && row.snippet.length); }",
        [words, response_id],
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_search_finds_and_marks_words_deep_in_a_response(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, theme: Literal["light", "dark"]
) -> None:
    model, needle = f"searched-{theme}", f"zanzibar{theme}"
    answer = f"{'Nothing of it. ' * 40} The {needle} is here. {HOSTILE}"
    upstream.script(model, reply(text(answer)))
    with browser.page(page_stack.base_url, color_scheme=theme) as page, Wire(page_stack) as wire:
        created = wire.create(model=f"local/{model}", input="Where is it?", metadata={"kind": f"deep-{theme}"})["id"]
        page.goto("/ui")
        found_by_all_of_it(page, needle, created)
        page.press("/")
        assert page.find(".search-hint").is_visible()
        assert page.axe() == []
        page.page.keyboard.type(f"{needle[:6].upper()} {needle} kind:deep-{theme} after:1d")
        lists_only(page, created)
        page.until(f"id => ({MARKED})(id) === '{needle}'", created)
        snippet = page.find(f"[data-id={created}] .snippet")
        assert HOSTILE in snippet.inner_text()
        assert snippet.locator("img, script").count() == 0
        assert page.axe() == []
        address = f"/ui?text={quote(f'{needle[:6].upper()} {needle} kind:deep-{theme} after:1d', safe='')}"
        assert page.path.replace("+", "%20") == address
        page.page.reload()
        lists_only(page, created)
        page.page.set_viewport_size({"width": 360, "height": 740})
        page.until(f"id => ({MARKED})(id) === '{needle}'", created)
        assert page.fits()
        assert page.axe() == []
        page.press("Escape", "j", "Enter")
        page.find("h1", "Where is it?")
        page.check_quiet()


def test_wrong_filter_in_the_search_says_what_it_takes(browser: Browser, page_stack: LiveStack) -> None:
    with browser.page(page_stack.base_url) as page:
        page.goto("/ui?text=status%3Adone")
        page.find("[role=alert]", "'status:' takes one of queued")
        assert not [one for one in page.problems if "Failed to load resource" not in one]


def test_frame_is_there_before_scripts_run(browser: Browser, page_stack: LiveStack) -> None:
    with browser.page(page_stack.base_url) as page:
        page.page.route("**/*.js", lambda route: route.abort())
        page.page.goto(f"{page_stack.base_url}/ui")
        assert [each.inner_text() for each in page.page.locator("#nav a").all()][:2] == ["Responses", "Sessions"]
        page.find("main", "Reading…")


def test_first_rows_are_asked_for_before_the_modules_are_there(browser: Browser, page_stack: LiveStack) -> None:
    with browser.page(page_stack.base_url) as page:
        page.page.route("**/app.js", lambda route: route.abort())
        with page.page.expect_request("**/v1/ui/responses?text=rare&limit=50"):
            page.page.goto(f"{page_stack.base_url}/ui?text=rare")


def test_long_search_shows_how_far_it_is_and_ends_with_its_query(page: BrowserPage) -> None:
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        if "slow" in route.request.url or ("halted" in route.request.url and "after" in route.request.url):
            return  # it is never answered
        to = 1_753_870_829 - 86_400 * len(asked)
        coverage = {"covers": "first_words", "waiting": 0}
        found = {"object": "list", "data": [], "has_more": True, "next": "n", "read_to": to, "search": coverage}
        route.fulfill(json=found)

    page.page.route(re.compile(r"/v1/ui/responses\?"), answer)
    page.goto("/ui?text=rare")
    page.find("[role=status]", "Nothing found yet: searched back to 10 Jul 2025")
    assert len(asked) == 20
    assert page.axe() == []
    page.find("button", "Search on").focus()
    page.press("Enter")
    page.find("[role=status]", "Nothing found yet: searched back to 20 Jun 2025")
    with page.page.expect_event("requestfailed", lambda request: "slow" in request.url):
        page.find("input[type=search]").fill("slow")
        page.until("() => document.querySelector('.rows-tail').innerText.includes('Reading…')")
        page.find("input[type=search]").fill("other")
    page.find("[role=status]", "Nothing found yet: searched back to")
    assert "text=other" in asked[-1]
    page.find("input[type=search]").fill("halted")
    page.find(".searching", "Searching: searched back to")
    assert page.axe() == []
    with page.page.expect_event("requestfailed", lambda request: "halted" in request.url):
        page.find("button", "Stop").click()
    page.find("[role=status]", "Nothing found yet: searched back to")
    page.find("button", "Search on")


HOSTILE_CELL = '=HYPERLINK("http://x","a")'


def test_filtered_list_is_saved_as_json_lines_and_as_a_table(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, own_model: str
) -> None:
    upstream.script(own_model, reply(text("An answer.")))
    with browser.page(page_stack.base_url) as page, Wire(page_stack) as wire:
        asked = {"model": f"local/{own_model}", "input": HOSTILE_CELL}
        made = [wire.create(**asked, metadata={"n": str(n)}) for n in range(3)]
        page.goto(f"/ui?text=model%3A{own_model}")
        lists_only(page, *(each["id"] for each in made))
        saved = {}
        for name in ("JSON lines for evals", "CSV"):
            page.find("summary", "Export").focus()
            page.press("Enter")
            button = page.find(".menu-list button", name)
            assert page.axe() == []
            button.focus()
            with page.page.expect_download() as download:
                page.press("Enter")
            saved[download.value.suggested_filename] = Path(download.value.path()).read_text()
        lines = [json.loads(line) for line in saved["responses.jsonl"].splitlines()]
        assert [line["item"]["id"] for line in lines] == [each["id"] for each in reversed(made)]
        assert {line["sample"]["output_text"] for line in lines} == {"An answer."}
        rows = list(csv.DictReader(saved["responses.csv"].splitlines()))
        assert [row["id"] for row in rows] == [each["id"] for each in reversed(made)]
        assert {row["words"] for row in rows} == {f"'{HOSTILE_CELL}"}
        page.check_quiet()
