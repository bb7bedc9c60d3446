"""Formulas, comparisons, copies, print, scrolling and other details of the built-in page."""

from typing import Any, Final

import pytest

from tests.support.browser import Browser, BrowserPage
from tests.support.mcp_server import McpServers
from tests.support.showcase import Showcase
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.wire import Wire

pytestmark = pytest.mark.live

DESK: Final = {"viewport": {"width": 1280, "height": 800}}
PHONE: Final = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
RAIN: Final = (
    "The weather in Lisbon is mild and the sea is calm, so you should take a light jacket and good shoes for the walk."
)
RICE: Final = (
    "To cook rice, rinse the grains in cold water and bring the pot to a boil, then cover it and wait for a while."
)
WHOLE: Final = """one => {
  const box = one.getBoundingClientRect();
  const row = one.closest('.cell-words').getBoundingClientRect();
  return one.scrollWidth <= one.clientWidth && box.left >= row.left && box.right <= row.right + 1;
}"""
SEEN: Final = """() => [...document.querySelectorAll('button:not(.id, .as-link), .button, .bar, nav, input, textarea')]
  .filter((one) => one.checkVisibility()).map((one) => one.outerHTML.slice(0, 80))"""


def test_formula_of_an_answer_is_shown_as_mathematics_or_as_it_was_written(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    words = r"It is \(a^2 + b_1\), not \(\unknown{a} * b_2\):"
    upstream.script("maths", reply(text(words, "\n\n\\[\nx \\\\\n- y_1\n\\]\n\n**so on**.")))
    with Wire(page_stack) as wire:
        response_id = wire.create(model="local/maths", input="What?")["id"]
    page.goto(f"/ui/responses/{response_id}")
    shown = page.find(".message[data-role=assistant] .md").inner_text()
    assert page.page.locator(".message .md math msup").all_text_contents() == ["a2"]
    assert r"\(\unknown{a} * b_2\)" in shown
    assert "\\[\nx \\\\\n- y_1\n\\]" in shown
    assert page.find(".message .md strong").inner_text() == "so on"


def test_answers_without_anything_in_common_are_compared_as_wholes(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("two", [reply(text(RAIN)), reply(text(RICE))])
    with Wire(page_stack) as wire:
        first, second = (wire.create(model="local/two", input="Tell me.")["id"] for _ in range(2))
    page.goto(f"/ui/compare?a={first}&b={second}")
    page.find(".diff")
    assert page.page.locator(".diff del").all_inner_texts() == [RAIN[:-1]]
    assert page.page.locator(".diff ins").all_inner_texts() == [RICE[:-1]]
    assert page.axe() == []


def test_copied_request_says_what_has_to_be_written_into_it(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, mcp: McpServers
) -> None:
    upstream.script("asker", reply(text("Yes.")))
    server = {"type": "mcp", "server_label": "orders", "server_url": mcp.url("mcp")}
    with Wire(page_stack) as wire:
        response_id = wire.create(model="local/asker", input="Add.", tools=[server])["id"]
    with browser.page(page_stack.base_url, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(f"/ui/responses/{response_id}")
        for name, comment in (("curl", "# "), ("Python", "# "), ("TypeScript", "// ")):
            page.find("summary", "Copy as").click()
            page.page.get_by_role("button", name=name, exact=True).click()
            page.find(".toast", f"Copied as {name}. Write what <redacted> stands for")
            copied = page.page.evaluate("() => navigator.clipboard.readText()")
            assert copied.startswith(f"{comment}Write what <redacted> stands for")
            assert "<redacted>" in copied.partition("\n")[2]
        page.check_quiet()


@pytest.mark.parametrize("options", [DESK, PHONE])
def test_failed_row_shows_its_whole_code(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, options: dict[str, Any]
) -> None:
    upstream.script("broken", reply(text("The first half of an answer that goes on and on. " * 5), end="drop"))
    with browser.page(page_stack.base_url, **options) as page, Wire(page_stack) as wire:
        words = "A question that is long enough to fill the row of a list by itself, whatever its width. " * 2
        list(wire.stream(model="local/broken", input=words))
        page.goto("/ui?status=failed")
        failed = page.find(".list-row .error-text")
        assert failed.evaluate(WHOLE)
        page.check_quiet()


@pytest.mark.parametrize("address", ["/ui", "/ui/responses/{trip}", "/ui/chain/{darker}", "/ui/playground?from={root}"])
def test_print_has_no_buttons_and_all_of_the_code(page: BrowserPage, showcase: Showcase, address: str) -> None:
    page.goto(address.format(trip=showcase.trip, darker=showcase.darker, root=showcase.root))
    page.find("main :is(.message, .list-row)")
    page.page.set_viewport_size({"width": 390, "height": 800})
    page.page.emulate_media(media="print")
    assert page.page.evaluate(SEEN) == []
    assert page.page.locator("main h2:visible", has_text="Score").count() == 0
    assert page.page.locator("pre").evaluate_all("all => all.every((one) => one.scrollWidth <= one.clientWidth)")


def test_choices_of_tools_are_whole_on_a_phone(browser: Browser, page_stack: LiveStack) -> None:
    with browser.page(page_stack.base_url, **PHONE) as page:
        page.goto("/ui/playground")
        page.page.locator(".options .choice", has_text="not available").first.wait_for(state="attached")
        page.find(".panel-fold > summary").tap()
        page.find(".options .choice", "Programs")
        ends = page.page.locator(".options .choice:visible").evaluate_all(
            "all => all.map((one) => Math.round(one.getBoundingClientRect().right))"
        )
        assert max(ends) <= 390
        page.check_quiet()


@pytest.mark.parametrize("way", ["back", "reload"])
def test_place_in_a_long_response_is_kept(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream, way: str
) -> None:
    upstream.script("long", reply(text(*(f"Paragraph {number}. " + "Word " * 60 + "\n\n" for number in range(60)))))
    with Wire(page_stack) as wire:
        response_id = wire.create(model="local/long", input="Write much.")["id"]
    page.goto(f"/ui/responses/{response_id}")
    page.find(".message .md p", "Paragraph 59.")
    page.page.evaluate("() => scrollTo(0, 2000)")
    if way == "back":
        page.page.locator(".actions a", has_text="Chain").evaluate("link => link.click()")
        page.find("h1", "Chain")
        page.page.go_back()
    else:
        page.page.reload()
    page.find("h1", "Write much.")
    page.until("() => scrollY === 2000")


def test_two_tables_of_an_answer_are_no_landmarks_of_one_name(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    upstream.script("tables", reply(text(table, "And:\n\n", table)))
    with Wire(page_stack) as wire:
        response_id = wire.create(model="local/tables", input="Two tables, please.")["id"]
    page.goto(f"/ui/responses/{response_id}")
    page.find(".message .md table")
    assert page.axe() == []
    page.goto(f"/ui/compare?a={response_id}&b={response_id}")
    page.find(".pair")
    assert page.axe() == []
