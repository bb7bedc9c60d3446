"""An operator who has never seen a store answers questions about it with the page alone, in three clicks at most."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.support.browser import Browser, BrowserPage
from tests.support.mcp_server import McpServers
from tests.support.stack import Host, LiveStack
from tests.support.story import Story, make_story, story_stack
from tests.support.upstream import UpstreamProcess, reply, text, tool_call
from tests.support.web import Web
from tests.support.wire import Wire

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def furnished_stack(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    internet: Web,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveStack]:
    """The stack of the story."""
    with story_stack(tmp_path_factory.mktemp("story"), stack_env, upstream_process, internet, host) as live:
        yield live


@pytest.fixture(scope="module")
def story(furnished_stack: LiveStack, upstream_process: UpstreamProcess, mcp: McpServers, internet: Web) -> Story:
    """What happened."""
    with Wire(furnished_stack) as wire:
        return make_story(wire, upstream_process.client, mcp, internet)


@pytest.fixture
def start(browser: Browser, furnished_stack: LiveStack, story: Story) -> Iterator[BrowserPage]:
    """The page at its start; the test fails if a script fails, the policy refuses something, or another host gets a request."""
    with browser.page(furnished_stack.base_url) as page:
        page.goto("/ui")
        page.find(".list-row")
        yield page
        page.check_quiet()


def tick(page: BrowserPage, name: str) -> None:
    """Set a filter by its label."""
    page.page.locator(".choice", has_text=re.compile(f"^{name}$")).click()


def only_row(page: BrowserPage) -> None:
    """Open the only row of a filtered list."""
    page.until(
        "() => document.querySelectorAll('.list-row').length === 1 && /all that there are/.test(document.body.innerText)"
    )
    page.find(".list-row a").click()
    page.find(".talk")


def fill(page: BrowserPage, field: str, value: str) -> None:
    """Fill a field of the filters."""
    page.page.get_by_role("button", name="Filters").click()
    page.find(f"input[name={field}]").fill(value)
    page.press("Enter")


def test_page_shows_failed_tool_call_and_reason(start: BrowserPage) -> None:
    tick(start, "Failed tool calls")
    start.find(".list-row a", "Change the address").click()
    failed = start.find(".tool[data-failed=yes]").inner_text()
    assert "locked by the warehouse until 18:00" in failed


def test_list_and_page_show_response_with_most_tokens(start: BrowserPage) -> None:
    fill(start, "min_tokens", "100000")
    only_row(start)
    usage = start.find(".usage").inner_text()
    assert "184,220" in usage
    assert "9,800 (79 %)" in usage


def test_page_shows_slow_response_and_its_times(start: BrowserPage) -> None:
    fill(start, "min_seconds", "3")
    only_row(start)
    details = start.page.locator(".lane-detail").all_inner_texts()
    assert re.match(r"first token after 3\.\d+ s", details[-1])


def test_replay_shows_that_the_call_ended_before_the_wait_for_the_model(start: BrowserPage, story: Story) -> None:
    start.goto(f"/ui/responses/{story.slow}/replay")
    start.find(".event", "output_text.delta")
    [called] = times(start, "output_item.donemcp_call")
    answered = times(start, "output_text.delta")[0]
    assert answered - called > 2.5


def times(page: BrowserPage, event: str) -> list[float]:
    """Return when the replay shows these events: in seconds after the response was created."""
    found = page.page.eval_on_selector_all(
        ".event",
        "(all, event) => all.filter((one) => one.textContent.includes(event))"
        ".map((one) => one.lastElementChild.textContent)",
        event,
    )
    return [float(number) / {"ms": 1000, "s": 1}[unit] for number, unit in (each.split() for each in found)]


def test_page_shows_chat_request_of_second_round(start: BrowserPage, story: Story) -> None:
    start.find(".list-row a", "Does the ferry to Oslo leave?").click()
    start.find("summary", "Chat requests").click()
    start.find(".requests summary", "Round 2").click()
    sent = json.loads(start.find(".requests details[open] pre").inner_text())
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool"]


def test_page_shows_output_of_cancelled_job(start: BrowserPage) -> None:
    tick(start, "Cancelled")
    only_row(start)
    start.find(".notice", "Cancelled")
    assert "up by 4 %" in start.find(".message[data-role=assistant]").inner_text()


def test_page_shows_reason_of_failure(start: BrowserPage) -> None:
    tick(start, "Failed")
    only_row(start)
    assert "503" in start.find(".notice.bad", "All graphics cards are in use.").inner_text()


def test_page_links_to_sibling_branch(start: BrowserPage, story: Story) -> None:
    start.find(".list-row a", "Make it informal.").click()
    start.find("a.button", "Chain").click()
    start.find(".tree ul a", "Make it shorter.").click()
    start.find(".turn[data-here=yes]", "Your order has left.")
    assert start.path == f"/ui/chain/{story.left}"


def test_page_shows_cited_sources(start: BrowserPage) -> None:
    start.find(".list-row a", "How do otters sleep?").click()
    start.find(".citations")
    links = start.page.eval_on_selector_all(".citations a", "found => found.map((one) => [one.innerText, one.href])")
    assert links == [["About otters", "https://example.org/otters"], ["About fish", "https://example.org/fish"]]


def test_page_shows_compaction_of_conversation(start: BrowserPage, story: Story) -> None:
    start.find(".list-row a", "What is my name?").click()
    start.find(".compaction", "replaced by a summary")
    assert "Compaction" in start.find(".waterfall").inner_text()
    kinds = "all => all.map((one) => one.dataset.role ?? one.dataset.kind)"
    assert start.page.eval_on_selector_all(".items > .item", kinds) == ["compaction", "user", "assistant"]
    start.find("a.button", "Chain").click()
    divider = start.find(".turn[data-here=yes] .compaction")
    assert start.page.eval_on_selector_all(".turn .item", kinds) == [
        "user",
        "assistant",
        "compaction",
        "user",
        "assistant",
    ]
    assert divider.locator(".block").count() == 0
    divider.locator("summary").click()
    assert divider.locator(".md strong").inner_text() == "Ada Berg"
    assert start.axe() == []


def test_page_shows_calls_that_wait_for_approval(start: BrowserPage) -> None:
    start.find(".list-row a", "Add one to the order.").click()
    assert "4711" in start.find(".tool", "waits for approval").locator(".what").inner_text()


def test_filter_of_waiting_responses_finds_unanswered_approval(start: BrowserPage) -> None:
    tick(start, "Waiting for an answer")
    only_row(start)
    start.find("h1", "Add one to the order.")
    start.find(".head .status[data-status=waits]", "Needs approval")
    start.find(".notice.warn a", "Answer in the playground").click()
    start.find(".answer-call", "orders: add")


def test_playground_shows_the_packages_of_the_code_interpreter(start: BrowserPage) -> None:
    start.goto("/ui/playground")
    shown = start.find(".options .choices", "Installed packages: ").inner_text()
    assert re.search(r"Installed packages: matplotlib [\d.]+, numpy [\d.]+, pandas [\d.]+\.", shown)
    assert start.page.get_by_role("checkbox", name="Code interpreter", exact=True).is_enabled()
    assert start.axe() == []


def test_file_that_code_wrote_is_downloaded_from_the_text_that_names_it(
    start: BrowserPage, furnished_stack: LiveStack, upstream_process: UpstreamProcess
) -> None:
    code = tool_call(0, "c1", "python", json.dumps({"code": "open('sales.csv', 'w').write('month,sales')"}))
    upstream_process.client.script("maker", [reply(code), reply(text("It is in \u3010f1\u3011."))])
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    with Wire(furnished_stack) as wire:
        response_id = wire.create(model="local/maker", input="Save the sales.", tools=tools)["id"]
        start.goto(f"/ui/responses/{response_id}")
        for place in (".md button", ".citations button"):
            with start.page.expect_download() as saved:
                start.find(place, "sales.csv").click()
            assert saved.value.suggested_filename == "sales.csv"
            assert saved.value.path().read_text() == "month,sales"
        assert start.axe() == []
        wire.http.delete(f"/responses/{response_id}")


def test_list_shows_client_call_as_waiting_until_a_response_continues_it(
    start: BrowserPage, furnished_stack: LiveStack, upstream_process: UpstreamProcess
) -> None:
    upstream_process.client.script("stock", [reply(tool_call(0, "call_7", "count", "{}")), reply(text("Nine."))])
    tools = [{"type": "function", "name": "count", "parameters": {"type": "object", "properties": {}}}]
    with Wire(furnished_stack) as wire:
        response_id = wire.create(model="local/stock", input="Count the parcels.", tools=tools)["id"]
        row = f".list-row[data-id={response_id}]"
        start.find(f"{row} .status[data-status=waits]", "Waits for client")
        start.find(f"{row} a").click()
        start.find(".tool .tag", "waits for the client")
        start.page.go_back()
        start.find(f"{row} .status[data-status=waits]")
        answer = [{"type": "function_call_output", "call_id": "call_7", "output": "9"}]
        later = wire.create(model="local/stock", input=answer, previous_response_id=response_id)["id"]
        start.find(f"{row} .status[data-status=completed]")
        start.page.reload()
        start.find(f"{row} .status[data-status=completed]")
        for each in (later, response_id):
            wire.http.delete(f"/responses/{each}")


def test_page_shows_output_of_program(start: BrowserPage) -> None:
    start.find(".list-row a", "Sum up.").click()
    start.find(".tool .result")
    assert start.page.locator(".tool .result").all_inner_texts()[0] == "→ ZeroDivisionError: division by zero"
    assert start.page.eval_on_selector_all(".tool", "found => found.map((one) => one.dataset.failed ?? 'no')") == [
        "yes",
        "no",
    ]


def test_filter_of_failed_tool_calls_finds_code_that_raised(start: BrowserPage) -> None:
    tick(start, "Failed tool calls")
    cell = start.find(".list-row", "Sum up.").locator(".cell-tools")
    assert cell.get_attribute("title") == "1 of 2 failed"


def test_page_shows_input_before_the_question(start: BrowserPage) -> None:
    start.find(".list-row a", "And 11?").click()
    start.find(".tool summary", "Earlier items of the input").click()
    earlier = start.find(".tool[aria-label='Earlier items of the input']")
    assert [one.split("\n")[0] for one in earlier.locator(".item").all_inner_texts()] == [
        "User",
        "Reasoning",
        "Assistant",
    ]
    assert "encrypted" in earlier.locator(".reasoning").inner_text()


def test_failed_tool_call_is_marked_in_the_list_of_a_phone(
    browser: Browser, furnished_stack: LiveStack, story: Story
) -> None:
    with browser.page(furnished_stack.base_url, viewport={"width": 360, "height": 740}) as page:
        page.goto("/ui?failed_tools=true")
        assert page.find(f".list-row[data-id={story.failing}] .cell-tools").inner_text().startswith("1 of 1")
        assert page.fits()


def test_long_words_and_other_scripts_stay_within_a_phone(
    browser: Browser, furnished_stack: LiveStack, story: Story
) -> None:
    with browser.page(furnished_stack.base_url, viewport={"width": 360, "height": 740}) as page:
        for path in (
            f"/ui/responses/{story.odd}",
            f"/ui/chain/{story.odd}",
            f"/ui/compare?a={story.odd}&b={story.root}",
        ):
            page.goto(path)
            page.find(".message")
            assert page.fits()
            assert page.axe() == []
