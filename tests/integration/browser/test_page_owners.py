"""What an operator sees of all owners on the page, and what others do not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import pytest

from tests.support.auth import auth_server
from tests.support.browser import Browser, BrowserPage
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import UpstreamProcess, reply, text
from tests.support.variants import responses_config, variant
from tests.support.wire import Wire

pytestmark = pytest.mark.live

MARKUP: Final = '"><img src=x onerror=window.harm=1><b onmouseover=window.harm=2>\u202etxt.exe'
LONG: Final = "long-" + "<i>ä\u202e</i>" * 320
"""4 kB of markup that turns its text."""
NAMES: Final = {"ada": "ada", "bob": "bob", "olga": "olga", "markup": MARKUP, "long": LONG}
USERS: Final[dict[str, Any]] = {
    f"token-of-{token}": {"principal": name, "attributes": {"roles": ["admin" if token == "olga" else "user"]}}
    for token, name in NAMES.items()
}


@pytest.fixture(scope="module")
def operated(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LiveStack, dict[str, str]]]:
    """A stack with an operator, and the id of a response of each user by their token."""

    def change(config: dict[str, Any]) -> None:
        config["server"]["auth"] = {"provider_config": {"type": "custom", "endpoint": url}}
        responses_config(config).update(roles={"operator": {"roles": ["admin"]}}, usage={})

    folder = tmp_path_factory.mktemp("operated")
    upstream_process.client.script("small", reply(text("Hello.")))
    with auth_server(USERS) as url:
        env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
        with LiveStack(variant(STARTER, folder / "config.yaml", change), env, folder / "state", host=host) as live:
            made = {}
            for token in NAMES:
                with Wire(live, token=f"token-of-{token}") as wire:
                    made[token] = str(wire.create(model="local/small", input=f"A question of {token}.")["id"])
            yield live, made


@pytest.fixture
def olga(browser: Browser, operated: tuple[LiveStack, dict[str, str]]) -> Iterator[BrowserPage]:
    """The page as the operator has it."""
    with browser.page(operated[0].base_url) as page:
        signed_in(page, "olga", "/ui")
        yield page
        page.check_quiet()


def signed_in(page: BrowserPage, token: str, address: str) -> None:
    page.goto(address)
    page.find("dialog input[name=token]").fill(f"token-of-{token}")
    page.press("Enter")
    page.until("() => document.documentElement.dataset.owner")
    page.problems.clear()  # the refusals of the requests before


def acts(live: LiveStack) -> list[tuple[str, str, str | None]]:
    """Return the acts in the audit log, newest first: type, outcome, and the id of the object."""
    with Wire(live, token="token-of-olga") as wire:
        entries = wire.http.get("/admin/audit?limit=100").raise_for_status().json()["data"]
    return [(each["type"], each["outcome"], each["resource"]["id"]) for each in entries if "audit" not in each["type"]]


@pytest.mark.both_hosts
def test_operator_reads_what_others_have_by_keys_alone(
    olga: BrowserPage, operated: tuple[LiveStack, dict[str, str]]
) -> None:
    live, made = operated
    olga.find(f".list-row[data-id={made['olga']}]")
    assert olga.page.locator(".list-row").count() == 1
    before = len(acts(live))
    olga.press("w")
    olga.find(f".list-row[data-id={made['ada']}] .row-owner", "ada")
    assert (olga.path, olga.page.locator(".list-row").count()) == ("/ui?owners=all", len(NAMES))
    for gone in ("Export", "Select", "Newest first"):
        assert not olga.page.locator(".filters .row > *", has_text=gone).first.is_visible()
    assert olga.axe() == []
    olga.press("f")
    olga.page.locator("input[name=owner]").fill("bob")
    olga.press("Enter")
    olga.gone(f".list-row[data-id={made['ada']}]")
    assert olga.path == "/ui?owner=bob"
    olga.find(f".list-row[data-id={made['bob']}]")
    olga.page.keyboard.press("Escape")
    olga.press("j", "Enter")
    olga.find(".message", "Hello.")
    assert olga.path == f"/ui/owners/{made['bob']}"
    assert olga.find(".head .tag").inner_text() == "owner: bob"
    assert olga.page.locator("main .actions button, .scoring, .permalink").count() == 0
    assert olga.axe() == []
    assert acts(live)[: len(acts(live)) - before] == [
        ("response.read", "allowed", made["bob"]),
        ("response.listed", "allowed", None),
        ("response.listed", "allowed", None),
    ]
    olga.find("summary", "Raw JSON").click()
    olga.find(".raw", made["bob"])
    olga.find("a", "All of this owner").click()
    olga.find(f".list-row[data-id={made['bob']}]")


def test_own_response_opens_as_before_from_the_list_of_all(
    olga: BrowserPage, operated: tuple[LiveStack, dict[str, str]]
) -> None:
    olga.goto("/ui?owners=all")
    olga.find(f".list-row[data-id={operated[1]['olga']}] a").click()
    olga.find("button", "Share")
    assert olga.path == f"/ui/responses/{operated[1]['olga']}"
    olga.goto("/ui?owners=all")
    olga.find("label", "All owners").click()
    olga.gone(f".list-row[data-id={operated[1]['ada']}]")
    assert olga.path == "/ui"
    olga.find(".connection[data-state=on]")


def test_usage_of_an_owner_leads_to_the_responses_and_back(
    olga: BrowserPage, operated: tuple[LiveStack, dict[str, str]]
) -> None:
    olga.goto("/ui?owners=all")
    olga.find("a", "Usage by owner").click()
    olga.find(".usage-table th a", "bob").click()
    olga.find(f".list-row[data-id={operated[1]['bob']}]")
    assert olga.page.locator(".list-row").count() == 1
    assert "owner=bob" in olga.path


@pytest.mark.both_hosts
def test_operator_filters_and_pages_the_audit_log(
    olga: BrowserPage, operated: tuple[LiveStack, dict[str, str]]
) -> None:
    live, made = operated
    with Wire(live, token="token-of-olga") as wire:
        for _ in range(60):
            wire.http.get("/admin/audit?limit=1").raise_for_status()
        wire.http.get(f"/admin/responses/{made['bob']}").raise_for_status()
    olga.press("g", "a")
    olga.find(".audit-entry .type", "response.read")
    assert olga.axe() == []
    olga.find("button", "Older entries").click()
    olga.until("() => document.querySelectorAll('.audit-entry').length > 50")
    ids = olga.page.locator(".audit-entry").evaluate_all("all => all.map(one => one.dataset.id)")
    assert ids == sorted(set(ids), reverse=True)
    olga.page.locator("input[name=type]").fill("response.read")
    olga.press("Enter")
    olga.gone(".audit-entry .type", "audit_log.read")
    assert olga.path == "/ui/admin?type=response.read"
    olga.find(".audit-entry .resource_id", made["bob"]).click()
    olga.until("id => document.querySelector('input[name=resource_id]')?.value === id", made["bob"])
    assert "with" not in olga.find(".audit-entry .dim", "from 127.0.0.1").inner_text()
    assert olga.page.locator(".audit-entry").count() == acts(live).count(("response.read", "allowed", made["bob"]))
    olga.find("a", "Open the response").click()
    olga.find(".head .tag", "owner: bob")
    olga.goto("/ui/admin?type=nothing.done")
    olga.find(".empty", "No entry matches these filters.")
    olga.find("button", "Show all").click()
    olga.find(".audit-entry .type", "response.read")


def test_hostile_entry_of_the_audit_log_runs_nothing_and_fits_a_phone(
    browser: Browser, operated: tuple[LiveStack, dict[str, str]]
) -> None:
    live, _ = operated
    script = "<img src=x onerror=window.harm=1>"
    for token in ("markup", "long"):
        with Wire(live, token=f"token-of-{token}") as wire:
            sent = {"user-agent": script * 7, "x-forwarded-for": script * 7}
            assert wire.http.get(f"/admin/responses/{quote(script)}", headers=sent).status_code == 403
    phone = {"width": 390, "height": 844}
    with browser.page(live.base_url, viewport=phone, has_touch=True, color_scheme="dark") as page:
        signed_in(page, "olga", f"/ui/admin?resource_id={quote(script)}")
        refused = page.find(".audit-entry[data-outcome=refused]", "Refused")
        assert refused.locator(".resource_id").inner_text() == script
        assert page.find("#nav a[aria-current] span").evaluate("one => one.getClientRects()[0].height") < 30  # one line
        assert page.page.locator(".audit-entry").count() == 2
        assert page.fits()
        assert page.axe() == []
        page.find(".audit-entry .actor", NAMES["long"][:5]).click()
        page.until("name => document.querySelector('input[name=actor]')?.value === name", NAMES["long"])
        page.find(".audit-entry .actor", NAMES["long"][:5])
        assert page.page.locator(".audit-entry").count() == 1
        assert page.fits()
        assert page.page.evaluate("() => window.harm") is None
        assert page.page.locator("main img").count() == 0
        page.check_quiet()


@pytest.mark.parametrize("token", ["markup", "long"])
def test_hostile_owner_runs_nothing_and_fits_a_phone(
    browser: Browser, operated: tuple[LiveStack, dict[str, str]], token: str
) -> None:
    live, made = operated
    phone = {"width": 360, "height": 740}
    with browser.page(live.base_url, viewport=phone, has_touch=True, color_scheme="dark") as page:
        signed_in(page, "olga", "/ui?owners=all")
        mark = page.find(f".list-row[data-id={made[token]}] .row-owner")
        assert mark.evaluate("one => getComputedStyle(one).unicodeBidi") == "isolate"
        assert page.fits()
        assert page.axe() == []
        page.goto(f"/ui?owner={quote(NAMES[token])}")
        page.find(f".list-row[data-id={made[token]}] a").click()
        page.find(".message", "Hello.")
        assert page.fits()
        assert page.axe() == []
        page.goto("/ui/usage?by=user_id")
        page.find(".usage-table th a", NAMES[token][:5])
        assert page.fits()
        assert page.page.evaluate("() => window.harm") is None
        assert page.page.locator("main img, main b[onmouseover]").count() == 0
        page.check_quiet()


def test_others_are_offered_nothing_and_refused(browser: Browser, operated: tuple[LiveStack, dict[str, str]]) -> None:
    """Also if they have the address, or a script that says they may."""
    live, made = operated
    with browser.page(live.base_url) as page:
        signed_in(page, "ada", "/ui")
        page.find(f".list-row[data-id={made['ada']}]")
        assert page.page.locator(".for-operators:visible, .row-owner").count() == 0
        page.press("w")
        assert page.path == "/ui"
        page.press("?")
        assert not re.search("all owners|audit", page.find("dialog").inner_text(), re.IGNORECASE)
        page.goto("/ui/admin")
        page.find("[role=alert]", "no such page")
        page.goto("/ui?owners=all")
        page.find("[role=alert]", "insufficient permissions")
        page.goto(f"/ui/owners/{made['bob']}")
        page.find("[role=alert]", "insufficient permissions")
        page.page.evaluate("() => { document.documentElement.dataset.operator = 'yes' }")
        page.press("g", "r")
        page.page.locator("label", has_text="All owners").click()
        page.find("[role=alert]", "insufficient permissions")
        assert page.page.locator(".list-row").count() == 0
    assert ("response.read", "refused", made["bob"]) in acts(live)
