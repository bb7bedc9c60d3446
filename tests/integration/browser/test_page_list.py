"""The list of the built-in page in a real browser: filters, scrolling, live rows, keyboard."""

import re
import time
from typing import Literal
from urllib.parse import quote

import pytest

from tests.support.browser import SECONDS, Browser, BrowserPage
from tests.support.showcase import Showcase
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.waiting import wait_until
from tests.support.wire import Wire

pytestmark = pytest.mark.live

FIRST_PAGE = "GET /v1/ui/responses?"
SCROLL = """element => new Promise((drawn) => {
  element.scrollTop += 400;
  requestAnimationFrame(() => requestAnimationFrame(drawn));
})"""
"""Scrolls on, and ends after the rows have been drawn there."""


def shown(page: BrowserPage) -> list[str]:
    """Return the ids of the rows in the document, from top to bottom."""
    found: list[str] = page.page.eval_on_selector_all(
        ".list-row", "rows => rows.sort((a, b) => a.dataset.index - b.dataset.index).map((row) => row.dataset.id)"
    )
    return found


def lists_only(page: BrowserPage, *ids: str) -> None:
    """Wait until the list shows exactly these responses."""
    page.until(
        "wanted => { const rows = [...document.querySelectorAll('.list-row')].map((row) => row.dataset.id);"
        " return rows.length === wanted.length && wanted.every((id) => rows.includes(id)) }",
        list(ids),
    )


@pytest.mark.smoke
def test_list_of_stored_responses_has_their_facts_newest_first(page: BrowserPage, showcase: Showcase) -> None:
    page.goto("/ui")
    row = page.find(f".list-row[data-id={showcase.trip}]")
    words = row.inner_text()
    assert "Compare the weather in Lisbon" in words
    assert "Completed" in words
    assert "planner" in words
    assert row.locator(".cell-tools").get_attribute("data-failed") == "yes"
    assert re.search(r"\d+ → \d+", words)
    earlier = ".cell-words .goes-on"
    assert row.locator(earlier).count() == 0
    assert page.find(f".list-row[data-id={showcase.gulls}] {earlier}").get_attribute("title") == (
        "Continues an earlier response"
    )
    ids = shown(page)
    assert ids.index(showcase.trip) < ids.index(showcase.cut) < ids.index(showcase.root)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("metadata=team%3Aoutages&status=failed", "broken"),
        ("status=incomplete", "cut"),
        ("model=local%2Fseer", "picture"),
        ("model=seer", "picture"),
        ("metadata=team%3Atravel", "trip"),
        ("text=LONG%20story", "cut"),
        ("text=The%20Sleeping%20tide", "harbour"),
    ],
)
def test_filters_in_the_address_show_matching_rows_only(
    page: BrowserPage, showcase: Showcase, query: str, name: str
) -> None:
    page.goto(f"/ui?{query}")
    lists_only(page, getattr(showcase, name))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_refused_request_appears_in_the_list_and_opens(
    browser: Browser, page_stack: LiveStack, theme: Literal["light", "dark"]
) -> None:
    question = f"A question in {theme} <b>words</b>"
    wrong = {"model": "local/seer", "input": question, "metadata": {"theme": theme}, "temperature": 7}
    with browser.page(page_stack.base_url, color_scheme=theme) as page, Wire(page_stack) as wire:
        page.goto("/ui/live")
        page.find(".chart h2 a", "Errors").click()
        page.find(".connection[data-state=on]")
        assert page.path == "/ui?status=failed&status=refused"
        wire.http.post("/responses", json=wrong)
        row = page.find(".list-row", question)
        assert "Refused" in row.inner_text()
        assert "400 decimal_above_max_value" in row.inner_text()
        row.locator("a").focus()
        page.press("Enter")
        page.find("h1", question)
        assert "temperature" in page.find(".facts").inner_text()
        assert page.axe() == []
        page.find("a", "Refused requests of this model").click()
        page.find(".list-row", question)
        assert page.axe() == []
        page.check_quiet()


def test_list_is_turned_to_the_oldest_first_and_back(
    page: BrowserPage, page_stack: LiveStack, showcase: Showcase, upstream: Upstream
) -> None:
    oldest_first = [showcase.root, showcase.harbour, showcase.gulls, showcase.darker]
    page.goto("/ui?metadata=team%3Apoems")
    lists_only(page, *oldest_first)
    page.press("o")
    page.find("button", "Oldest first")
    lists_only(page, *oldest_first)
    assert shown(page) == oldest_first
    assert page.path == "/ui?metadata=team%3Apoems&order=asc"
    page.page.reload()
    lists_only(page, *oldest_first)
    assert shown(page) == oldest_first
    page.find(".connection[data-state=on]")
    upstream.script("writer", reply(text("Later.")))
    with Wire(page_stack) as wire:
        response_id = wire.create(model="local/writer", input="One more.", metadata={"team": "poems"})["id"]
        page.find(f".list-row[data-id={response_id}]")
        assert shown(page) == [*oldest_first, response_id]
        wire.http.delete(f"/responses/{response_id}")
    page.gone(f".list-row[data-id={response_id}]")
    page.find("button", "Oldest first").click()
    page.find("button", "Newest first")
    lists_only(page, *oldest_first)
    assert shown(page) == oldest_first[::-1]
    assert page.path == "/ui?metadata=team%3Apoems"


def test_list_from_the_oldest_shows_responses_created_while_another_view_was_open(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream, own_model: str
) -> None:
    upstream.script(own_model, [reply(text("One.")), reply(text("Two."))])
    with Wire(page_stack) as wire:
        responses = [wire.create(model=f"local/{own_model}", input="First?")["id"]]
        page.goto(f"/ui?model={own_model}&order=asc")
        page.find(".dim", "all that there are")
        page.find(f".list-row[data-id={responses[0]}] a").click()
        page.find("h1", "First?")
        responses.append(wire.create(model=f"local/{own_model}", input="Second?")["id"])
        page.page.go_back()
        lists_only(page, *responses)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/ui/responses/%", "No such page"),
        ("/ui/chain/%E0%A4%A", "No such page"),
        ("/ui?from=yesterday", "Invalid 'from'"),
        ("/ui?status=odd", "Invalid value for 'status'"),
    ],
)
def test_malformed_address_is_named(browser: Browser, page_stack: LiveStack, address: str, words: str) -> None:
    with browser.page(page_stack.base_url) as page:
        page.goto(address)
        page.find("main", words)
        assert not [one for one in page.problems if one.startswith("script")]


def test_search_names_what_it_takes(page: BrowserPage, showcase: Showcase) -> None:
    page.goto("/ui?text=no%20such%20words")
    page.find(".empty", "No response matches")
    field = page.page.get_by_role("searchbox", name="Search responses")
    field.focus()
    assert "tool:web_search" in page.find(f"#{field.get_attribute('aria-describedby')}").inner_text()


def test_search_field_filters_while_typing_and_keeps_the_address(page: BrowserPage, showcase: Showcase) -> None:
    page.goto("/ui")
    page.press("/")
    page.page.keyboard.type("harbour at night")
    lists_only(page, showcase.harbour)
    assert page.path == "/ui?text=harbour+at+night"
    page.page.reload()
    lists_only(page, showcase.harbour)
    assert page.find("input[name=text]").input_value() == "harbour at night"


def test_status_and_conversation_filters_are_set_by_their_fields(page: BrowserPage, showcase: Showcase) -> None:
    page.goto("/ui?metadata=team%3Apoems")
    page.page.get_by_role("checkbox", name="Failed", exact=True).check()
    lists_only(page)
    page.page.get_by_role("checkbox", name="Failed", exact=True).uncheck()
    lists_only(page, showcase.root, showcase.harbour, showcase.gulls, showcase.darker)
    page.goto("/ui")
    page.page.get_by_role("button", name="Filters").click()
    page.page.get_by_label("Conversation").fill(showcase.conversation)
    page.page.get_by_label("Conversation").press("Enter")
    page.until("() => document.querySelectorAll('.list-row').length === 2")


def test_time_filter_takes_the_zone_of_the_viewer(browser: Browser, page_stack: LiveStack, showcase: Showcase) -> None:
    with browser.page(page_stack.base_url, timezone_id="Asia/Tokyo") as page:
        page.goto("/ui")
        page.page.get_by_role("button", name="Filters").click()
        now = page.page.evaluate(
            "() => { const now = new Date(); now.setMinutes(now.getMinutes() + 60);"
            " return new Date(now - now.getTimezoneOffset() * 60000).toISOString().slice(0, 16) }"
        )
        page.page.get_by_label("From", exact=True).fill(now)
        page.find(".empty", "No response matches")
        questions = [one for one in page.requests if "from=" in one][-1]
        [sent] = re.findall(r"from=(\d+)", questions)
        assert abs(int(sent) - time.time() - 3600) < 120
        page.page.get_by_role("link", name="show all responses").click()
        page.find(".list-row")
        page.check_quiet()


def test_empty_list_names_the_next_step(page: BrowserPage, showcase: Showcase) -> None:
    page.goto("/ui?text=no%20such%20words%20anywhere")
    assert page.find(".empty h2").inner_text() == "No response matches"
    assert page.find(".empty a", "show all responses").get_attribute("href") == "/ui"


def test_long_list_is_read_one_request_a_page_and_keeps_few_rows(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream, own_model: str
) -> None:
    upstream.script(own_model, reply(text("Yes.")))
    with Wire(page_stack) as wire:
        for number in range(120):
            wire.create(model=f"local/{own_model}", input=f"Number {number}")
    page.goto(f"/ui?model=local%2F{own_model}")
    page.find(".list-row")
    # The script that runs before the modules has sent it.
    assert len([one for one in page.requests if one.startswith(FIRST_PAGE)]) == 1
    assert page.page.evaluate("() => globalThis.asked") is None
    seen = set(shown(page))
    deadline = time.monotonic() + SECONDS
    while len(seen) < 120 and time.monotonic() < deadline:
        page.page.locator(".scroller").evaluate(SCROLL)
        seen |= set(shown(page))
    page.find(".rows-tail", "120 responses")
    assert len(seen) == 120
    assert len(shown(page)) < 60
    assert len([one for one in page.requests if one.startswith(FIRST_PAGE)]) == 3


def test_new_and_changed_responses_appear_by_themselves(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    page.goto("/ui?model=local%2Fslow")
    page.find(".connection[data-state=on]")
    upstream.script("slow", reply(text("One ", "two."), hold=1))
    with Wire(page_stack) as wire:
        response_id = wire.post({"model": "local/slow", "input": "Count to two.", "background": True}).json()["id"]
        page.find(f".list-row[data-id={response_id}] .status[data-status=in_progress]")
        upstream.release("slow")
        page.find(f".list-row[data-id={response_id}] .status[data-status=completed]")
        wire.http.delete(f"/responses/{response_id}")
    page.gone(f".list-row[data-id={response_id}]")
    assert len([one for one in page.requests if one.startswith(FIRST_PAGE)]) == 1


def test_view_that_was_hidden_shows_what_changed_meanwhile(
    browser: Browser, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("held", reply(text("One ", "two."), hold=1))
    upstream.script("quick", reply(text("Yes.")))
    fields = {"model": "local/quick", "metadata": {"seen": "hidden"}}
    with (
        Wire(page_stack) as wire,
        browser.page(page_stack.base_url) as listed,
        browser.page(page_stack.base_url) as sessions,
    ):
        body = {**fields, "model": "local/held", "input": "Count.", "background": True}
        running = wire.post(body).json()["id"]
        others = [wire.create(**fields, input=f"Number {number}")["id"] for number in range(51)]
        second = wire.create(**fields, input="Go on", previous_response_id=others[-1])["id"]
        listed.goto("/ui?metadata=seen%3Ahidden&order=asc")
        listed.find(f".list-row[data-id={running}] .status[data-status=in_progress]")
        listed.find(f".list-row[data-id={others[5]}]")
        sessions.goto("/ui/sessions")
        sessions.find(f".session[data-id={second}]", "2 turns")
        for page in (listed, sessions):
            page.hide()
        upstream.release("held")
        wait_until(lambda: wire.retrieve(running)["status"] == "completed")
        wire.http.delete(f"/responses/{others[5]}")
        third = wire.create(**fields, input="And on", previous_response_id=second)["id"]
        for page in (listed, sessions):
            page.hide(hidden=False)
        listed.find(f".list-row[data-id={running}] .status[data-status=completed]")
        listed.gone(f".list-row[data-id={others[5]}]")
        sessions.find(f".session[data-id={third}]", "3 turns")


def test_rows_are_moved_through_and_opened_by_keys(page: BrowserPage, showcase: Showcase) -> None:
    page.goto("/ui?metadata=team%3Apoems")
    lists_only(page, showcase.root, showcase.harbour, showcase.gulls, showcase.darker)
    page.press("j", "j", "k")
    focused = page.page.evaluate("() => document.activeElement.closest('.list-row').dataset.id")
    assert focused == showcase.darker
    page.press("j", "Enter")
    page.find("h1", "Now without the gulls.")
    assert page.path == f"/ui/responses/{showcase.gulls}"
    page.page.go_back()
    page.find(f".list-row[data-id={showcase.gulls}]")
    page.until("id => document.activeElement.closest('.list-row')?.dataset.id === id", showcase.gulls)


def test_question_mark_shows_the_keys_of_the_view(page: BrowserPage, showcase: Showcase) -> None:
    page.goto("/ui")
    page.press("?")
    words = page.find("dialog").inner_text()
    assert all(name in words for name in ("Search responses", "Next response", "Open the response", "Playground"))
    page.press("Escape")
    page.gone("dialog")
    page.press("g", "p")
    page.find("textarea[name=input]")
    assert page.path == "/ui/playground"


def test_two_marked_rows_are_compared(page: BrowserPage, showcase: Showcase) -> None:
    page.goto("/ui?metadata=team%3Apoems")
    lists_only(page, showcase.root, showcase.harbour, showcase.gulls, showcase.darker)
    page.press("j", "c", "j", "c")
    page.find("h1", "Two responses")
    assert page.path == f"/ui/compare?a={quote(showcase.darker)}&b={quote(showcase.gulls)}"


def test_times_are_in_the_zone_of_the_viewer(browser: Browser, page_stack: LiveStack, showcase: Showcase) -> None:
    found = {}
    for zone in ("Asia/Tokyo", "America/New_York"):
        with browser.page(page_stack.base_url, timezone_id=zone) as page:
            page.goto("/ui?metadata=team%3Atravel")
            when = page.find(f".list-row[data-id={showcase.trip}] time")
            found[zone] = (when.inner_text(), when.get_attribute("datetime"))
    assert found["Asia/Tokyo"][0] != found["America/New_York"][0]
    assert found["Asia/Tokyo"][1] == found["America/New_York"][1]


@pytest.mark.parametrize("width", [380, 800, 1280, 1440, 1920])
def test_fields_of_filters_do_not_overlap_at_any_width(page: BrowserPage, showcase: Showcase, width: int) -> None:
    page.page.set_viewport_size({"width": width, "height": 800})
    page.goto("/ui")
    page.page.get_by_role("button", name="Filters").click()
    boxes = [one.bounding_box() for one in page.page.locator(".filter-fields input").all()]
    found = [(box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]) for box in boxes if box]
    assert len(found) == 7
    overlaps = [
        (a, b)
        for number, a in enumerate(found)
        for b in found[number + 1 :]
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]
    assert not overlaps
    assert max(box[2] for box in found) <= width


@pytest.mark.parametrize("width", [360, 722, 980, 1280])
def test_failed_tool_calls_of_a_row_are_visible_at_any_width(page: BrowserPage, showcase: Showcase, width: int) -> None:
    page.page.set_viewport_size({"width": width, "height": 800})
    page.goto("/ui?metadata=team%3Atravel")
    row = page.find(f".list-row[data-id={showcase.trip}]")
    row.locator(".cell-tools", has_text="1 of 2").wait_for()
    words = row.locator(".cell-words").bounding_box()
    assert words
    assert words["width"] > 150


def test_number_filter_applies_while_typing(page: BrowserPage, showcase: Showcase) -> None:
    page.goto("/ui")
    page.find(".list-row")
    page.page.get_by_role("button", name="Filters").click()
    page.find("input[name=min_tokens]").press_sequentially("100000000")
    page.find(".empty", "No response matches")
    assert page.path == "/ui?min_tokens=100000000"
    page.page.get_by_role("link", name="Clear").click()
    page.find(".list-row")
    assert page.path == "/ui"


def test_invalid_filter_is_named_and_is_no_lost_connection(browser: Browser, page_stack: LiveStack) -> None:
    with browser.page(page_stack.base_url) as page:
        with page.page.expect_response(lambda answer: "/responses/stream" in answer.url and answer.status == 400):
            page.goto("/ui?min_tokens=many")
        page.find("[role=alert]", "Invalid value for 'min_tokens'")
        page.page.locator(".connection").wait_for(state="hidden")
        page.page.get_by_role("link", name="Clear").click()
        page.find(".connection[data-state=on]", "Live")


def test_tab_of_responses_keeps_the_filter_of_the_list(page: BrowserPage, showcase: Showcase) -> None:
    page.goto("/ui?metadata=team%3Aoutages")
    page.page.get_by_role("checkbox", name="Failed", exact=True).check()
    lists_only(page, showcase.broken)
    page.until("() => location.search.includes('status=failed')")
    filtered = page.path
    page.find(".list-row a").click()
    page.find(".talk")
    page.find("#nav a", "Responses").click()
    lists_only(page, showcase.broken)
    assert page.path == filtered
    page.find("#nav a", "Responses").click()
    page.until("() => location.pathname + location.search === '/ui'")
    assert not page.page.get_by_role("checkbox", name="Failed", exact=True).is_checked()
    page.until("() => document.querySelectorAll('.list-row').length > 1")


def test_row_marked_for_comparison_is_shown_until_it_is_unmarked(page: BrowserPage, showcase: Showcase) -> None:
    page.goto("/ui?metadata=team%3Apoems")
    lists_only(page, showcase.root, showcase.harbour, showcase.gulls, showcase.darker)
    page.press("j", "c")
    page.find(f".list-row[data-id={showcase.darker}] .tag", "marked")
    page.press("c")
    page.gone(".list-row .tag")
    page.press("c", "j", "c")
    page.find("h1", "Two responses")
    assert page.page.locator(".toast").count() == 0
