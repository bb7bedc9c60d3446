"""The view of sessions, what continues a response, and the addresses of items."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.support.browser import Browser
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.wire import Wire

pytestmark = pytest.mark.live

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_sessions_lead_to_chains_and_conversations(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, theme: Literal["light", "dark"]
) -> None:
    model = f"talker-{theme}"
    upstream.script(model, reply(text(f"Answer {HOSTILE}")))
    with browser.page(page_stack.base_url, color_scheme=theme) as page, Wire(page_stack) as wire:
        first = wire.create(model=f"local/{model}", input=f"Begin {HOSTILE}")["id"]
        second = wire.create(model=f"local/{model}", input="Go on", previous_response_id=first)["id"]
        talk = wire.http.post("/conversations", json={}).json()["id"]
        wire.create(model=f"local/{model}", input="In a conversation", conversation=talk)
        page.goto("/ui")
        page.find("#nav a", "Sessions")
        page.press("g", "s")
        chain = page.find(f".session[data-id={second}]")
        assert HOSTILE in chain.inner_text()
        assert chain.locator("img").count() == 0
        assert "2 turns" in chain.inner_text()
        assert "Conversation" in page.find(f".session[data-id={talk}]").inner_text()
        assert page.axe() == []
        wire.create(model=f"local/{model}", input="Once more", conversation=talk)
        page.until(f"() => document.querySelector('.session[data-id={talk}]').innerText.includes('2 turns')")
        page.press("j")
        assert page.page.evaluate("() => document.activeElement.closest('.session') !== null")
        page.page.set_viewport_size({"width": 360, "height": 740})
        assert page.fits()
        assert page.axe() == []
        chain.locator("a").focus()
        page.press("Enter")
        page.find("h1", "Chain")
        assert page.path == f"/ui/chain/{second}"
        page.check_quiet()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_response_leads_to_what_continues_it_and_items_have_addresses(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, theme: Literal["light", "dark"]
) -> None:
    model = f"linked-{theme}"
    upstream.script(model, reply(text("An answer.")))
    with browser.page(page_stack.base_url, color_scheme=theme) as page, Wire(page_stack) as wire:
        first = wire.create(model=f"local/{model}", input="First")
        second = wire.create(model=f"local/{model}", input=f"Second {HOSTILE}", previous_response_id=first["id"])
        item = first["output"][-1]["id"]
        page.goto(f"/ui/responses/{first['id']}#{item}")
        page.until(f"() => document.activeElement?.dataset.id === '{item}'")
        assert page.axe() == []
        page.find(f"[data-id={item}] .permalink").focus()
        page.press("Enter")
        page.find(".toast", "Link copied")
        page.goto(f"/ui/responses/{first['id']}#%")
        page.find(".context a", f"Continued by: Second {HOSTILE}").focus()
        page.press("Enter")
        page.find("h1", "Second")
        assert page.path == f"/ui/responses/{second['id']}"
        page.check_quiet()
