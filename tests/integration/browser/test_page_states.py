"""The built-in page says of calls, results and responses what they are."""

import json

import pytest

from tests.integration.browser.test_page_playground import ask, choose
from tests.support.browser import BrowserPage
from tests.support.mcp_server import McpServers
from tests.support.reader import Reader
from tests.support.showcase import WEATHER, Showcase
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text, tool_call
from tests.support.wire import Json, Wire

pytestmark = pytest.mark.live

NUMBER = "name => parseFloat(document.querySelector(`[data-chart=${name}] .value span`).textContent) > 0"


def states(page: BrowserPage) -> list[str]:
    """Return the states of the tool calls that are shown."""
    return page.page.locator("[data-kind=tool] .mark .hidden-text").all_inner_texts()


def test_call_that_waits_for_the_client_is_not_done(page: BrowserPage, upstream: Upstream) -> None:
    upstream.script(
        "caller", [reply(tool_call(0, "c1", "get_weather", '{"city": "Oslo"}')), reply(text("Four degrees."))]
    )
    page.goto("/ui/playground")
    choose(page, "local/caller")
    page.page.get_by_label("Other tools, as JSON").fill(json.dumps([WEATHER]))
    ask(page, "How warm is it?")
    page.find("[data-kind=tool] .tag", "waits for the client")
    assert states(page) == ["waits for the client"]
    page.find(".answer-call textarea").fill("4 °C")
    page.press("Enter")
    page.find(".message[data-role=assistant] .md", "Four degrees.")
    page.find("[data-kind=tool] .hint", "→ 4 °C")
    assert states(page) == ["done"]


def test_call_that_was_given_to_the_client_is_not_done_in_its_replay(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/responses/{showcase.question}/replay")
    page.press("End")
    page.find("[data-kind=tool]", "get_weather")
    page.until(
        "() => document.querySelector('[data-kind=tool] .mark .hidden-text')?.textContent === 'given to the client'"
    )


def test_result_names_its_call_and_its_value(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/responses/{showcase.answered}")
    shown = page.find("[data-kind=tool_output] summary", "Result of get_weather")
    assert "→ {" in shown.inner_text()
    assert "celsius" in shown.inner_text()
    assert "call_9" not in shown.inner_text()
    page.goto(f"/ui/chain/{showcase.answered}")
    page.find("[data-kind=tool] .hint", "celsius")
    assert states(page) == ["done"]


def test_approved_call_no_longer_waits_for_approval(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream, mcp: McpServers
) -> None:
    upstream.script("asker", [reply(tool_call(0, "call_1", "orders__add", '{"a": 1, "b": 2}')), reply(text("Three."))])
    server: Json = {"type": "mcp", "server_label": "orders", "server_url": mcp.url("mcp"), "require_approval": "always"}
    with Wire(page_stack) as wire:
        first = wire.create(model="local/asker", input="Add one.", tools=[server])
        page.goto(f"/ui/chain/{first['id']}")
        page.find("[data-kind=approval] .tag", "waits for approval")
        [request] = [item for item in first["output"] if item["type"] == "mcp_approval_request"]
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        last = wire.create(model="local/asker", input=[answer], previous_response_id=first["id"], tools=[server])
    page.goto(f"/ui/chain/{last['id']}")
    page.find(".message .md", "Three.")
    assert page.page.locator("[data-kind=approval] .tag").all_inner_texts() == ["approved"]


def test_response_that_its_user_cancelled_is_not_blamed_on_the_worker(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("slow", reply(text("One ", "two ", "three"), hold=2))
    with (
        Wire(page_stack) as wire,
        Reader.create(wire, model="local/slow", input="Count.", background=True) as reader,
    ):
        reader.read_to("two ")
        wire.http.post(f"/responses/{reader.response_id}/cancel")
        page.goto(f"/ui/responses/{reader.response_id}")
    lane = page.find(".lane[data-kind=cut]")
    assert lane.inner_text().startswith("Cancelled")
    assert "worker" not in lane.inner_text()


def test_turn_of_a_chain_that_ends_is_shown_as_ended(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("turns", [reply(text("Yes.")), reply(text("Half of ", "the answer."), hold=1)])
    with Wire(page_stack) as wire:
        first = wire.create(model="local/turns", input="Well?")["id"]
        body = {"model": "local/turns", "input": "And?", "previous_response_id": first, "background": True}
        second = wire.post(body).json()["id"]
        page.goto(f"/ui/chain/{second}")
        page.find(f".turn[id={second}] .status[data-status=in_progress]")
        upstream.release("turns")
        page.find(f".turn[id={second}] .status[data-status=completed]")
        page.find(f".turn[id={second}] .md", "Half of the answer.")


def test_running_foreground_response_has_its_question_as_its_title(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("slow", reply(text("One ", "two ", "three"), hold=2))
    with (
        Wire(page_stack) as wire,
        Reader.create(wire, model="local/slow", input="What is the title?") as reader,
    ):
        reader.read_to("two ")
        page.goto(f"/ui/responses/{reader.response_id}")
        page.find("h1", "What is the title?")
        page.find(".message[data-role=user]", "What is the title?")
        upstream.release("slow")
        reader.read_to_end()


def test_charts_count_the_tokens_and_requests_of_responses_that_still_run(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("steady", reply(text(*["word "] * 4000), interval=0.02))
    page.goto("/ui/live")
    page.until("() => document.querySelector('[data-chart=Output] .value span').textContent === '0'")
    with Wire(page_stack) as wire:
        started = [
            wire.post({"model": "local/steady", "input": f"Count {number}.", "background": True}).json()["id"]
            for number in range(4)
        ]
        for name in ("Output", "Requests"):
            page.until(NUMBER, name)
        page.find(".live-row .status[data-status=in_progress]")
        for one in started:
            wire.http.post(f"/responses/{one}/cancel")
