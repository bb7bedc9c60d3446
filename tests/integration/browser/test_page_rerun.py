"""A selection of the list that is run again on another model, and compared with its originals pair by pair."""

from __future__ import annotations

import pytest
from playwright.sync_api import ViewportSize

from tests.integration.browser.test_page_list import lists_only
from tests.support.browser import Browser, BrowserPage
from tests.support.mcp_server import McpServers
from tests.support.prompts import PromptsClient
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.waiting import wait_until
from tests.support.wire import Wire

pytestmark = pytest.mark.live

HOSTILE = "<img src=x onerror=alert(1)> Which colour?"
PHONE: ViewportSize = {"width": 360, "height": 740}
OFFER = (
    "name => { const field = document.querySelector('dialog select');"
    " if (!field || field.disabled) return false; field.append(new Option(name)); field.value = name; return true }"
)
"""Offers a model that the server does not list, once it has listed its own."""


def test_selection_is_run_again_on_another_model_and_compared(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, mcp: McpServers, own_model: str
) -> None:
    upstream.script(own_model, [reply(text("Red."))] * 4)
    upstream.script("second", [reply(text("Blue, said again."))] * 3)
    hidden = {"type": "mcp", "server_label": "mcp", "server_url": mcp.url("mcp"), "require_approval": "never"}
    with browser.page(page_stack.base_url) as page, Wire(page_stack) as wire:
        talk = wire.http.post("/conversations", json={"items": [{"role": "user", "content": "Be brief."}]}).json()["id"]
        plain = wire.create(model=f"local/{own_model}", input=HOSTILE, metadata={"team": "colours"}, temperature=0.5)[
            "id"
        ]
        in_talk = wire.create(model=f"local/{own_model}", input="And the sky?", conversation=talk)["id"]
        secret = wire.create(model=f"local/{own_model}", input="By MCP?", tools=[hidden])["id"]
        before = wire.http.get(f"/conversations/{talk}/items").json()["data"]
        page.goto(f"/ui?text=model%3A{own_model}&order=asc")
        lists_only(page, plain, in_talk, secret)
        page.press("j", "s", "j", "s", "j", "s")
        page.find(".selection [role=status]", "3 selected")
        assert page.page.locator(".select-row:checked").count() == 3
        assert page.axe() == []
        page.find(".selection button", "Run again on").focus()
        page.press("Enter")
        page.until(OFFER, "local/second")
        page.find("dialog button", "Run again").focus()
        page.press("Enter")
        page.find("dialog [role=status]", "3 of 3 are done, 2 sent")
        page.find("dialog .error-text", "Not run again: It cannot be made again from here: a response does not show")
        assert page.axe() == []
        page.press("Enter")
        page.find("h1", "2 responses, run again")
        page.until("() => document.querySelectorAll('.pick .status[data-status=completed]').length === 2")
        assert page.axe() == []
        page.press("n")
        page.find(".run-head a", "1 of 2")
        page.find(".diff ins", "Blue, said again")
        page.find("section[aria-label^='Original'] .message", "Red.")
        page.find("section[aria-label^='New'] .scoring")
        # Two are sent at a time: either may have been made first.
        original = page.find("section[aria-label^='Original'] h2 a").inner_text()
        run = page.page.evaluate("() => new URLSearchParams(location.search).get('run')")
        page.press("+")
        page.find("section[aria-label^='New'] .scoring [aria-pressed=true]", "Good")
        assert page.axe() == []
        page.page.set_viewport_size(PHONE)
        assert page.fits()
        assert page.axe() == []
        page.press("n")
        page.find(".run-head a", "2 of 2")
        page.press("p")
        page.find(".run-head a", "1 of 2")
        rows = wire.http.get(f"/ui/responses?metadata=rerun:{run}").json()["data"]
        made = {row["metadata"]["rerun_of"]: row for row in rows}
        assert made.keys() == {plain, in_talk}
        assert made[plain]["metadata"]["team"] == "colours"
        assert [row["metadata"]["rerun_of"] for row in rows if row["score"]] == [original]
        assert made[original]["score"]["score"] == 1
        again = wire.retrieve(made[plain]["id"])
        assert (again["model"], again["temperature"], again["background"]) == ("local/second", 0.5, True)
        assert wire.retrieve(made[in_talk]["id"])["conversation"] is None
        items = wire.http.get(f"/responses/{made[in_talk]['id']}/input_items?order=asc").json()["data"]
        assert [item["content"][0]["text"] for item in items] == ["Be brief.", "And the sky?"]
        assert wire.http.get(f"/conversations/{talk}/items").json()["data"] == before
        page.check_quiet()


def test_response_of_a_stored_prompt_is_run_again_as_it_was_asked(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream, own_model: str
) -> None:
    upstream.script(own_model, reply(text('{"word": "Hei"}')))
    upstream.script("again", reply(text('{"word": "Hallo"}')))
    prompt = {
        "id": PromptsClient(page_stack).write("Speak {{language}}.", "language"),
        "variables": {"language": "Danish"},
    }
    schema = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    pairs = {f"pair_{number}": f"value {number}" for number in range(16)}
    asked = {"input": "Hello?", "prompt": prompt, "instructions": "Be brief.", "metadata": pairs}
    form = {"format": {"type": "json_schema", "name": "word", "schema": schema}}
    with Wire(page_stack) as wire:
        old = wire.create(model=f"local/{own_model}", text=form, **asked)
        page.goto(f"/ui?text=model%3A{own_model}")
        lists_only(page, old["id"])
        page.press("j", "s")
        page.find(".selection button", "Run again on").click()
        page.until(OFFER, "local/again")
        page.find("dialog button", "Run again").click()
        page.find("dialog [role=status]", "1 of 1 is done, 1 sent")
        page.find("dialog button", "Compare").click()
        page.find("h1", "1 response, run again")
        page.until("() => document.querySelector('.pick .status[data-status=completed]')")
        run = page.page.evaluate("() => new URLSearchParams(location.search).get('run')")
        refused = wire.post(
            {"model": "x", "input": "Hi", "temperature": 9, "metadata": {"rerun_of": old["id"], "rerun": run}}
        )
        assert refused.status_code == 400
        rows = f"/ui/responses?metadata=rerun:{run}"
        wait_until(lambda: len(wire.http.get(rows).json()["data"]) == 2)
        kept = {row["status"]: row["id"] for row in wire.http.get(rows).json()["data"]}
        assert kept.keys() == {"refused", "completed"}
        page.page.reload()
        page.find("h1", "1 response, run again")
        new = wire.retrieve(kept["completed"])
        for name in ("instructions", "prompt", "text"):
            assert new[name] == old[name]
        assert new["metadata"] == {"rerun_of": old["id"], "rerun": run, **dict(list(pairs.items())[:14])}
        page.goto(f"/ui/playground?from={old['id']}")
        page.until(
            "(wanted) => document.querySelector('[name=instructions]').value === wanted", "Speak Danish.\n\nBe brief."
        )
    first, again = (upstream.requests(model)[0].body for model in (own_model, "again"))
    assert {**again, "model": first["model"]} == first
    assert "verbosity" not in first


def test_selection_is_bounded_and_ends_with_its_mode(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, own_model: str
) -> None:
    upstream.script(own_model, [reply(text("Yes."))] * 2)
    with browser.page(page_stack.base_url, viewport=PHONE, has_touch=True, color_scheme="dark") as page:
        with Wire(page_stack) as wire:
            ids = [wire.create(model=f"local/{own_model}", input="Well?")["id"] for _ in range(2)]
        page.goto(f"/ui?text=model%3A{own_model}")
        lists_only(page, *ids)
        page.find("button", "Select").click()
        page.find(f"[data-id={ids[0]}] .select-row").check()
        page.find("button", "Select the first").click()
        page.find(".selection [role=status]", "2 selected")
        assert page.fits()
        assert page.axe() == []
        page.find(".selection button", "Done").click()
        assert page.page.locator(".select-row:visible").count() == 0
        page.find("button", "Select").click()
        page.find(".selection [role=status]", "Nothing selected")
        page.check_quiet()
