"""Scores and notes on the built-in page: set with the keyboard, marked in the list, filtered and exported."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from playwright.sync_api import ViewportSize

from tests.integration.browser.test_page_list import lists_only
from tests.support.browser import Browser
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.wire import Wire

pytestmark = pytest.mark.live

HOSTILE = '=1+1 "><img src=x onerror=alert(1)><script>alert(2)</script>\u202e txet'
PHONE: ViewportSize = {"width": 360, "height": 740}


def test_response_is_scored_and_annotated_with_the_keyboard(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, own_model: str
) -> None:
    upstream.script(own_model, [reply(text("An answer."))] * 2)
    with browser.page(page_stack.base_url, color_scheme="dark") as page, Wire(page_stack) as wire:
        good, other = (wire.create(model=f"local/{own_model}", input="Judge me.")["id"] for _ in range(2))
        page.goto(f"/ui?text=model%3A{own_model}")
        lists_only(page, good, other)
        page.goto(f"/ui/responses/{good}")
        page.find(".scoring")
        page.press("-")
        page.find(".scoring [aria-pressed=true]", "Bad")
        page.press("+")
        page.find(".scoring [aria-pressed=true]", "Good")
        page.press("n")
        page.page.keyboard.insert_text(HOSTILE)
        page.press("Tab", "Enter")
        page.gone(".scoring button", "Save the note")
        found = wire.http.get(f"/responses/{good}/score").json()
        assert (found["score"], found["note"]) == (1, HOSTILE)
        assert page.axe() == []
        page.page.set_viewport_size(PHONE)
        assert page.fits()
        assert page.axe() == []
        page.press("g", "r")
        mark = page.find(f"[data-id={good}] .score")
        assert mark.get_attribute("title") == f"Scored good: {HOSTILE}"
        page.goto(f"/ui?text=model%3A{own_model}+score%3Agood")
        lists_only(page, good)
        page.find(f"[data-id={good}] .score")
        assert page.fits()
        assert page.axe() == []
        page.page.set_viewport_size({"width": 1280, "height": 800})
        page.find("summary", "Export").click()
        with page.page.expect_download() as download:
            page.find(".menu-list button", "CSV").click()
        [row] = csv.DictReader(Path(download.value.path()).read_text().splitlines())
        assert (row["score"], row["note"]) == ("1", f"'{HOSTILE}")
        page.goto(f"/ui/responses/{good}")
        page.find(".scoring [aria-pressed=true]", "Good")
        assert page.find(".scoring textarea").input_value() == HOSTILE
        page.find(".scoring textarea").fill("")
        page.find(".scoring button", "Save the note").click()
        page.gone(".scoring button", "Save the note")
        page.press("Escape", "+")
        page.until("() => !document.querySelector('.scoring [aria-pressed=true]')")
        assert wire.http.get(f"/responses/{good}/score").status_code == 404
        page.check_quiet()


def test_page_of_a_server_without_scores_has_no_buttons_for_them(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, own_model: str
) -> None:
    with browser.page(page_stack.base_url) as page, Wire(page_stack) as wire:
        upstream.script(own_model, reply(text("An answer.")))
        made = wire.create(model=f"local/{own_model}", input="Judge me.")["id"]
        page.page.route("**/features/scores/**", lambda route: route.fulfill(status=404))
        page.goto(f"/ui/responses/{made}")
        page.find(".block", "Usage")
        assert page.page.locator(".scoring").count() == 0
