"""The view of what runs now: rows that are selected, cancelled and made again, and an hour of history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.support.browser import Browser, BrowserPage
from tests.support.mcp_server import McpServers
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, error, reply, text
from tests.support.waiting import wait_until
from tests.support.wire import Wire

from .test_page_people import HOSTILE

pytestmark = pytest.mark.live

FOCUSED: Final = "id => document.activeElement?.closest('.live-row')?.dataset.id === id"
PEAK: Final = """name => {
  const path = document.querySelector(`[data-chart="${name}"] .spark .stroke`).getAttribute("d") ?? "";
  return path.split("L").some((point) => Number(point.split(",")[1]) < 38);
}"""
RATES: Final = """async () => {
  const { CHARTS, Totals } = await import("/ui/rates.js");
  const [requests, output] = CHARTS.filter((chart) => ["Requests", "Output"].includes(chart.title));
  const totals = new Totals();
  const base = { server: "a", running: 16, failed: 0, first_token_ms: { count: 0, sum: 0 } };
  const at = (second) => ({ ...base, at: 3000000 + second, requests: 160 + second, events: 900 + 500 * second, output_tokens: 500 * second });
  const rate = (chart, now, earlier) => chart.value(now, earlier(chart.window), now.at - earlier(chart.window).at);
  const first = at(20);
  totals.add(first);
  const bucket = (start, seconds) => ({ ...base, at: 3000000 + start, seconds, requests: seconds, events: 500 * seconds, output_tokens: 500 * seconds });
  totals.seed({ server: "a", at: 3000020, buckets: [bucket(-60, 30), bucket(-30, 30), bucket(0, 20)] });
  const nothingNew = { ...first, at: first.at + 1 };
  let earlier = totals.add(nothingNew);
  const reloaded = rate(requests, nothingNew, earlier);
  for (let second = 22; second < 50; second += 1) earlier = totals.add(at(second));
  return [reloaded, rate(requests, at(49), earlier), rate(output, at(49), earlier)].map(Math.round);
}"""
YOUNG: Final = """async () => {
  const { Chart, CHARTS } = await import("/ui/rates.js");
  const { when } = await import("/ui/format.js");
  const chart = new Chart(CHARTS.find((one) => one.title === "Errors"));
  const [at, since] = [3000000, 2999700];
  const bucket = { running: 0, requests: 3, failed: 2, output_tokens: 0, events: 0, first_token_ms: { count: 0, sum: 0 } };
  chart.set({ at, since, buckets: [{ ...bucket, at: 2999970, seconds: 30 }] });
  return [when(since), chart.unit.textContent, chart.stroke.getAttribute("d").split("L").length];
}"""
ROW_RATES: Final = """async () => {
  const { Rows } = await import("/ui/live_rows.js");
  const rows = new Rows(new AbortController().signal, () => {});
  const real = performance.now;
  let now = 0;
  performance.now = () => now * 1000;
  const rates = [];
  const states = [0, 1, 2, 3, 4];
  for (const second of states) {
    now = second;
    const one = (id) => ({ id, status: "in_progress", model: "m", created_at: 0, background: true, events: 38 * second, output_items: 0 });
    rows.update([one("resp_a"), one("resp_b")], 0);
    now = second + 0.9;
    rates.push(rows.speed);
  }
  now = 30;
  rates.push(rows.speed);
  performance.now = real;
  return rates.map(Math.round);
}"""
NONE: Final = "\u2013"
BEGINNINGS: Final = """async () => {
  const { Chart, CHARTS, Totals } = await import("/ui/rates.js");
  const chart = new Chart(CHARTS.find((one) => one.title === "Requests"));
  chart.show("minutes");
  const totals = new Totals();
  const none = { running: 0, failed: 0, output_tokens: 0, events: 0, first_token_ms: { count: 0, sum: 0 } };
  const shown = [];
  const take = (server, second, requests) => {
    const now = { ...none, server, at: 3000000 + second, requests };
    if (!totals.goOn(now)) chart.clear();
    const earlier = totals.add(now);
    if (earlier) chart.add(now, earlier);
  };
  const look = () => shown.push(chart.number.textContent);
  const seed = (server, second, ...buckets) => totals.seed({ server, at: 3000000 + second, buckets: buckets.map(([at, requests]) => ({ ...none, at: 3000000 + at, seconds: 30, requests })) });
  take("a", 10, 100);
  take("a", 11, 101);
  look(); // one in a second
  seed("a", 11, [-30, 11], [0, 1]);
  take("a", 12, 101);
  look(); // one of the first totals, and one since, with those of the half minute before
  take("a", 400, 500);
  look(); // the view was hidden
  seed("a", 12, [0, 1]);
  take("a", 401, 501);
  look(); // its history is that of the time before
  take("b", 402, 5);
  take("b", 405, 9);
  seed("b", 405, [390, 9]);
  take("b", 410, 9);
  look(); // a new process, whose history is younger than its first totals
  return shown;
}"""


@contextmanager
def held(stack: LiveStack, upstream: Upstream, *questions: str, **fields: Any) -> Iterator[list[str]]:
    """Ask questions that are answered in the background, but not to the end; yield the ids of their responses."""
    upstream.script("held", reply(text("Half of ", "the answer."), hold=1))
    with Wire(stack) as wire:
        body = {"model": "local/held", "background": True, **fields}
        started = [wire.post({**body, "input": each}).json()["id"] for each in questions]
        try:
            yield started
        finally:
            for each in started:
                wire.http.post(f"/responses/{each}/cancel")


def statuses(stack: LiveStack, response_ids: list[str]) -> list[str]:
    with Wire(stack) as wire:
        return [wire.retrieve(each)["status"] for each in response_ids]


def test_selected_responses_are_cancelled_by_keys_after_a_question_and_made_again(
    browser: Browser, page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    questions = ("First?", "Second?", "Third?")
    with (
        held(page_stack, upstream, *questions, metadata={"team": "live"}) as started,
        browser.page(page_stack.base_url) as other,
    ):
        page.goto("/ui/live")
        other.goto("/ui/live")
        for each in started:
            page.find(f".live-row[data-id={each}] .live-tail", "Half of")
            other.find(f".live-row[data-id={each}]")
        page.page.locator(f".live-row[data-id={started[2]}] h3 a").focus()
        page.press("x", "j")
        page.until(FOCUSED, started[1])
        page.press("x", "c")
        page.find("dialog", "Cancel 2 responses?")
        assert page.axe() == []
        page.press("Tab", "Enter")
        for one in (page, other):
            for each in started[1:]:
                one.gone(f".running .live-row[data-id={each}]")
                one.find(f".ended-row[data-id={each}] .status[data-status=cancelled]")
            one.find(f".running .live-row[data-id={started[0]}]")
        assert statuses(page_stack, started) == ["in_progress", "cancelled", "cancelled"]
        upstream.script("held", reply(text("The whole answer.")))
        page.page.locator(f".ended-row[data-id={started[1]}] h3 a").focus()
        page.press("y")
        page.find(".toast", "Started again")
        wait_until(lambda: newest(page_stack, "Second?")["status"] == "completed")
        again = newest(page_stack, "Second?")
        assert again["id"] != started[1]
        assert again["metadata"] == {"team": "live"}
        other.check_quiet()


def newest(stack: LiveStack, words: str) -> dict[str, Any]:
    """Return the row of the newest response with these words."""
    with Wire(stack) as wire:
        rows: list[dict[str, Any]] = wire.http.get("/ui/responses", params={"text": words, "limit": 1}).json()["data"]
        return rows[0]


def test_request_that_cannot_be_made_again_says_why(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream, mcp: McpServers
) -> None:
    upstream.script("wrong", error(400, "No such thing."))
    server = {"type": "mcp", "server_label": "secret", "server_url": mcp.url("mcp"), "require_approval": "never"}
    with Wire(page_stack) as wire:
        fields = {"model": "local/wrong", "input": "With a secret path.", "tools": [server], "background": True}
        failed = wire.post(fields).json()["id"]
        wait_until(lambda: wire.retrieve(failed)["status"] == "failed")
        page.goto("/ui/live")
        page.find(f".ended-row[data-id={failed}] .retry").click()
        page.find(".toast", "does not show the path of an MCP server")
        page.goto(f"/ui/responses/{failed}")
        page.page.keyboard.press("R")
        page.find(".toast", "does not show the path of an MCP server")
        assert page.path == f"/ui/responses/{failed}"


def test_failures_that_are_not_shown_are_in_the_list(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("wrong", [error(400, "No such thing.") for _ in range(11)])
    with Wire(page_stack) as wire:
        fields = {"model": "local/wrong", "input": "Wrong?", "background": True}
        failed = [wire.post(fields).json()["id"] for _ in range(11)]
        wait_until(lambda: all(wire.retrieve(each)["status"] == "failed" for each in failed))
    page.goto("/ui/live")
    page.find(".ended-part", "The newest 10 are shown.").get_by_role("link", name="Show all in the list").click()
    page.find(f".list-row[data-id={failed[0]}]")


def test_hour_is_drawn_after_a_reload(page: BrowserPage, page_stack: LiveStack, upstream: Upstream) -> None:
    upstream.script("quick", reply(text("Yes.")))
    with Wire(page_stack) as wire:
        wire.create(model="local/quick", input="Yes?")
    page.goto("/ui/live")
    for name in ("Requests", "Output", "Events"):
        page.until(PEAK, name)
    page.find("select[name=span]").select_option("minutes")
    assert page.path == "/ui/live?span=minutes"
    page.page.reload()
    assert page.find("select[name=span]").input_value() == "minutes"
    page.find("select[name=span]").select_option("hour")
    page.until(PEAK, "Requests")
    assert page.path == "/ui/live"


def test_rates_of_many_streams_are_right_and_so_they_are_after_a_reload(page: BrowserPage) -> None:
    page.goto("/ui/live")
    assert page.page.evaluate(RATES) == [59, 60, 500]


def test_rate_of_a_minute_is_not_computed_from_a_second_of_it_or_from_another_process(page: BrowserPage) -> None:
    page.goto("/ui/live")
    assert page.page.evaluate(BEGINNINGS) == [NONE, "17.1", NONE, NONE, "10.8"]


def test_curves_of_a_server_that_runs_for_less_than_an_hour_begin_with_it(page: BrowserPage) -> None:
    page.goto("/ui/live")
    began, unit, points = page.page.evaluate(YOUNG)
    assert unit == f"since {began}"
    assert points == 11  # those of five minutes


def test_rate_of_rows_is_that_between_their_states_and_falls_when_none_comes(page: BrowserPage) -> None:
    page.goto("/ui/live")
    assert page.page.evaluate(ROW_RATES) == [0, 76, 76, 76, 76, 11]


def test_cards_say_what_responses_need_and_check_again_by_keys(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("echo", error(503, HOSTILE[:200]))
    with Wire(page_stack) as wire:
        assert wire.http.post("/responses", json={"model": "local/echo", "input": "Break."}).status_code >= 500
    page.goto("/ui/live")
    server = page.find(".feature-card[aria-label='Model servers'] summary", "answers")
    assert "local" in server.inner_text()
    page.find(".feature-card[aria-label=Store] .feature-line", "keeps responses for 30 days")
    page.find(".feature-card[aria-label=Server] .feature-line", "ready")
    server.press("Enter")
    page.find(".feature-card tr", "local/echo")
    page.find(".feature-card td", "ago: it reported an error of its own (503)")
    page.page.locator(".feature-card[aria-label='Model servers'] header button").press("Enter")
    page.find(".toast", "Checked")
    page.find(".feature-card[aria-label='Model servers'] details[open]")
    assert page.axe() == []


def test_hidden_view_requests_nothing(browser: Browser, page_stack: LiveStack) -> None:
    with browser.page(page_stack.base_url) as page:
        page.page.clock.install()
        page.goto("/ui/live")
        page.until("() => document.querySelector('[data-chart=Running] .value span').textContent === '0'")
        page.hide()
        page.requests.clear()
        page.page.clock.run_for(300_000)
        page.page.evaluate("() => new Promise((resolve) => requestAnimationFrame(resolve))")
        assert page.requests == []


@pytest.mark.parametrize("size", [(1280, 800), (360, 740)])
def test_rows_with_hostile_texts_fit_and_are_accessible(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, size: tuple[int, int]
) -> None:
    upstream.script("wrong", error(400, HOSTILE[:200]))
    viewport = {"width": size[0], "height": size[1]}
    with (
        held(page_stack, upstream, HOSTILE, "word" * 200) as started,
        browser.page(page_stack.base_url, viewport=viewport, color_scheme="dark", reduced_motion="reduce") as page,
        Wire(page_stack) as wire,
    ):
        body = {"model": "local/wrong", "background": True}
        failed = [wire.post({**body, "input": each}).json()["id"] for each in (HOSTILE, "word" * 200)]
        page.goto("/ui/live")
        for each in started:
            page.find(f".live-row[data-id={each}] .live-tail", "Half of")
        for each in failed:
            page.find(f".ended-row[data-id={each}]")
        page.find(".live-bar input").check()
        page.find(".live-bar", "selected")
        assert page.axe() == []
        assert page.fits()
        assert page.page.evaluate("() => window.harm") is None
        page.check_quiet()
