"""Presets of the playground, kept as stored prompts of the host."""

import json
import re
from typing import Any, Final

import pytest
from playwright.sync_api import Route

from tests.integration.browser.test_page_playground import ask, choose, last_body
from tests.support.browser import Browser, BrowserPage
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.wire import Wire

pytestmark = pytest.mark.live

HOSTILE: Final[tuple[Any, ...]] = (
    {"name": "<img src=x onerror=window.harm=1>", "settings": {"tools": "<script>window.harm=2</script>", "__proto__": "x"}},
    {"name": "no settings"},
    {"name": ["a"], "settings": {}},
    {"name": "odd", "settings": {"model": 1, "temperature": [], "store": None}, "instructions": {"id": "../responses"}},
    None,
    [],
)  # fmt: skip

NETWORK: Final[Any] = {
    "type": "allowlist",
    "allowed_domains": ["a.test"],
    "domain_secrets": [{"domain": "a.test", "name": "KEY", "value": "secret-value"}],
}


def prompts(wire: Wire) -> list[Any]:
    """Return the default versions of the stored prompts."""
    found: list[Any] = wire.http.get("/prompts").json()["data"]
    return found


def saved(page: BrowserPage, name: str) -> str:
    """Save the settings as a preset, and return what is said."""
    page.find(".presets").get_by_role("button", name="Save").click()
    page.find("dialog input[name=preset_name]").fill(name)
    page.press("Enter")
    return page.find(".toast", "Saved as version").inner_text()


def loaded(page: BrowserPage, name: str, version: str | None = None) -> None:
    """Choose a preset, or another of its versions."""
    page.find(".presets select[name=preset]").select_option(label=name)
    if version:
        page.find(".presets select[name=preset_version]").select_option(version)
    page.find(".toast", f"Preset {name}, version {version or ''}")


@pytest.mark.both_hosts
def test_preset_is_kept_with_its_versions_as_stored_prompts(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("poet", reply(text("Ja.")))
    page.goto("/ui/playground")
    choose(page, "local/poet")
    instructions = page.page.get_by_label("Instructions")
    instructions.fill("Answer in Norwegian.")
    page.find("summary", "Settings").click()
    page.page.get_by_label("Temperature").fill("0.5")
    assert saved(page, "Norwegian") == "Saved as version 1"
    page.gone(".toast")
    instructions.fill("Answer in Nynorsk.")
    assert saved(page, "Norwegian") == "Saved as version 2"
    assert page.axe() == []
    instructions.fill("My own words.")
    page.page.get_by_label("Temperature").fill("1")
    page.page.reload()
    loaded(page, "Norwegian")
    assert instructions.input_value() == "Answer in Nynorsk."
    held: list[Route] = []
    newest = re.compile(r"/prompts/.*version=2")
    page.page.route(newest, lambda route: held.append(route))  # noqa: PLW0108, since playwright marks its handler
    loaded(page, "Norwegian", "1")
    with page.page.expect_response(newest):
        held.pop().continue_()  # the answer to the choice before
    page.page.unroute(newest)
    assert instructions.input_value() == "Answer in Norwegian."
    assert page.page.get_by_label("Temperature").input_value() == "0.5"
    page.page.get_by_role("button", name="Undo").click()
    assert instructions.input_value() == "My own words."
    page.page.get_by_role("button", name="Undo").click()
    ask(page, "Well?")
    page.find(".message[data-role=assistant] .md", "Ja.")
    sent = last_body(upstream, "poet")
    assert (sent["temperature"], sent["messages"][0]["content"]) == (0.5, "Answer in Norwegian.")
    with Wire(page_stack) as wire:
        [kept] = [one for one in prompts(wire) if one["prompt"] == "Answer in Nynorsk."]
        answer = wire.create(model="local/poet", input="Well?", prompt={"id": kept["prompt_id"], "version": "1"})
        assert answer["instructions"][0]["content"][0]["text"] == "Answer in Norwegian."
        page.page.get_by_role("button", name="Delete").click()
        page.find("dialog", kept["prompt_id"]).get_by_role("button", name="Delete").click()
        page.find(".toast", "Deleted Norwegian")
        assert not [one for one in prompts(wire) if "Norwegian" in one["prompt"] or "Nynorsk" in one["prompt"]]
    assert instructions.input_value() == "Answer in Norwegian."


def test_preset_holds_no_secret_of_a_tool(page: BrowserPage, page_stack: LiveStack) -> None:
    tools = [
        {"type": "mcp", "server_label": "a", "server_url": "https://a.test/secret-path", "authorization": "secret-token"},
        {"type": "mcp", "server_label": "b", "server_url": "https://b.test/mcp", "headers": {"x-key": "secret-key"}},
        {"type": "code_interpreter", "container": {"type": "auto", "network_policy": NETWORK}},
        {"type": "shell", "environment": {"type": "container_auto", "network_policy": NETWORK}},
    ]  # fmt: skip
    page.goto("/ui/playground")
    choose(page, "local/poet")
    page.find("summary", "Settings").click()
    page.page.get_by_label("Any other fields").fill(
        json.dumps({"seed": 1, "tools": tools, "input": [{"tools": tools}]})
    )
    page.page.get_by_label("MCP server").fill("https://user:secret-word@c.test/mcp?key=secret-query")
    page.page.get_by_label("Other tools, as JSON").fill(json.dumps(tools))
    said = saved(page, "Secretive {{x}}")
    for what in (
        "authorization",
        "headers",
        "the address of the MCP server",
        "the address of an MCP server",
        "domain_secrets.value",
    ):
        assert what in said
    with Wire(page_stack) as wire:
        [kept] = [one for one in prompts(wire) if "Secretive" in one["prompt"]]
        assert "secret-" not in json.dumps(kept)
        settings = json.loads(kept["prompt"])["playground_preset"]["settings"]
        assert settings["mcp_url"] == "https://c.test/mcp"
        cleaned, extra = json.loads(settings["tools"]), json.loads(settings["extra"])
        assert [tool["server_url"] for tool in cleaned[:2]] == ["https://a.test/<redacted>", "https://b.test/mcp"]
        shown = {**NETWORK, "domain_secrets": [{**NETWORK["domain_secrets"][0], "value": ""}]}
        assert cleaned[2]["container"]["network_policy"] == cleaned[3]["environment"]["network_policy"] == shown
        assert extra == {"seed": 1, "tools": cleaned, "input": [{"tools": cleaned}]}
        wire.http.delete(f"/prompts/{kept['prompt_id']}")


def test_hostile_presets_run_nothing_and_are_listed_as_text(page: BrowserPage, page_stack: LiveStack) -> None:
    with Wire(page_stack) as wire:
        texts = [json.dumps({"playground_preset": each}, separators=(",", ":")) for each in HOSTILE]
        texts += ['{"playground_preset":', "[]", "x"]
        made = [
            wire.http.post("/prompts", json={"prompt": each, "variables": []}).json()["prompt_id"] for each in texts
        ]
        page.goto("/ui/playground")
        choose(page, "local/poet")
        names = page.find(".presets select[name=preset]").locator("option").all_inner_texts()
        assert names == ["none", HOSTILE[0]["name"], "odd"]
        page.find(".presets select[name=preset]").select_option(label="<img src=x onerror=window.harm=1>")
        page.until("() => document.querySelector('textarea[name=tools]').value.startsWith('<script>')")
        page.find(".presets select[name=preset]").select_option(label="odd")
        page.find(".toast")
        assert page.page.evaluate("() => window.harm") is None
        assert page.page.locator("main img, main script").count() == 0
        for each in made:
            wire.http.delete(f"/prompts/{each}")
        page.problems = [one for one in page.problems if "Failed to load resource" not in one]


def test_server_without_stored_prompts_says_so(browser: Browser, page_stack: LiveStack) -> None:
    with browser.page(page_stack.base_url) as page:
        page.page.route("**/v1/prompts", lambda route: route.fulfill(status=404, json={"detail": "Not Found"}))
        page.goto("/ui/playground")
        page.find(".presets", "This server stores no prompts, so there are no presets.")
        assert page.page.locator(".presets button, .presets select").count() == 0
