"""A response, its chain, its replay and its comparison on the built-in page in a real browser."""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import batched
from pathlib import Path

import pytest
from playwright.sync_api import Route

from tests.support.browser import Browser, BrowserPage
from tests.support.clients import installed
from tests.support.mcp_server import McpServers
from tests.support.seed import seed
from tests.support.showcase import Showcase
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text, tool_call
from tests.support.waiting import wait_until
from tests.support.wire import Wire

COVERED = """() => [...document.querySelectorAll('.item > .permalink')].flatMap((link) => {
  const own = link.getBoundingClientRect();
  const parts = [...link.parentElement.querySelectorAll('summary > *')].filter((one) => one.checkVisibility());
  return parts.filter((part) => part.getBoundingClientRect().right > own.left
    && part.getBoundingClientRect().top < own.bottom && part.getBoundingClientRect().bottom > own.top)
    .map((part) => part.outerHTML.slice(0, 80));
})"""
"""Returns what of the lines of items lies below their links."""
pytestmark = pytest.mark.live


def copied(browser: Browser, stack: LiveStack, response_id: str, language: str) -> str:
    """Return what "Copy as" puts into the clipboard."""
    with browser.page(stack.base_url, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(f"/ui/responses/{response_id}")
        page.find("summary", "Copy as").click()
        page.page.get_by_role("button", name=language, exact=True).click()
        page.find(".toast", f"Copied as {language}")
        page.check_quiet()
        return str(page.page.evaluate("() => navigator.clipboard.readText()"))


@pytest.mark.both_hosts
def test_response_with_tools_reads_as_a_conversation(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/responses/{showcase.trip}")
    page.find("h1", "Compare the weather in Lisbon")
    kinds = page.page.eval_on_selector_all(".items > .item", "items => items.map((item) => item.dataset.kind)")
    assert kinds == ["message", "tools", "reasoning", "tool", "tool", "reasoning", "message"]
    assert page.find(".talk > .item", "Instructions").locator("details").get_attribute("open") is None
    answer = page.find(".message[data-role=assistant]")
    assert answer.locator("table td").first.inner_text() == "Lisbon"
    assert answer.locator("pre code").inner_text().startswith("def pack(city")
    link = answer.locator("a")
    assert link.get_attribute("href") == "https://example.org/weather"
    assert link.get_attribute("rel") == "noopener noreferrer nofollow"


def test_failed_call_shows_its_error_in_its_line_and_opens_to_its_arguments(
    page: BrowserPage, showcase: Showcase
) -> None:
    page.goto(f"/ui/responses/{showcase.trip}")
    failed = page.find(".tool[data-failed=yes]")
    assert "The station in Reykjavík does not answer" in failed.locator(".under").inner_text()
    assert failed.locator("pre").count() == 0
    failed.locator("summary").click()
    assert '"reason"' in failed.locator("pre").first.inner_text()
    good = page.page.locator(".tool:not([data-failed])", has_text="Lisbon").first
    good.locator("summary").click()
    good.get_by_text("21.5").first.wait_for()


def test_usage_says_why_the_prompt_of_another_response_was_not_reused(page: BrowserPage, page_stack: LiveStack) -> None:
    with Wire(page_stack) as wire:
        first = wire.create(model="local/echo", input="Hi")
        options = {"comparison_response_id": first["id"]}
        second = wire.create(model="local/echo", input="Ho", prompt_cache_options=options)
    missed = second["prompt_cache_diagnostics"]["cache_missed_tokens"]
    page.goto(f"/ui/responses/{second['id']}")
    page.find(".panel p", f"The compared prompt was not reused: input changed, about {missed} tokens.")


def test_facts_of_a_response_have_usage_timing_and_settings(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/responses/{showcase.trip}")
    panel = page.find(".panel")
    words = panel.inner_text()
    assert all(name in words for name in ("Input", "of it cached", "of it reasoning", "Total", "local/planner"))
    assert "spring" in words
    lanes = panel.locator(".lane")
    names = lanes.locator(".lane-name").all_inner_texts()
    first, *tools, last = [name for name in names if name not in ("Queue", "Preparation")]
    # Tools that run at the same time are in the order in which they start.
    assert (first, sorted(tools), last) == ("Model round 1", ["fail", "weather"], "Model round 2")
    assert re.search(r"first token after .+ tokens/s", panel.locator(".lane-detail").last.inner_text())
    assert panel.locator("svg rect").count() >= 6
    panel.locator("a.lane-name", has_text="fail").click()
    page.until("() => document.activeElement.dataset.failed === 'yes'")


def test_waterfall_shows_queue_and_preparation_and_no_empty_lanes(page: BrowserPage) -> None:
    page.goto("/ui")
    first = {"start_ms": 300, "first_token_ms": None, "end_ms": 400, "kind": "answer"}
    timing = {"total_ms": 400, "queue_ms": 100, "rounds": [first], "tools": [], "truncated": False}
    shown = page.page.evaluate(
        "async (timing) => { const { waterfall } = await import('/ui/waterfall.js');"
        " const made = waterfall(timing); return [...made.querySelectorAll('.lane-name, .lane .num, .legend span')]"
        ".map((one) => one.textContent) }",
        timing,
    )
    lanes = ["Queue", "100 ms", "Preparation", "200 ms", "Model round 1", "100 ms"]
    assert shown == [*lanes, "queue", "preparation", "to first token"]


def test_long_setting_is_a_line_that_opens(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/responses/{showcase.person}")
    setting = page.find(".facts > div", "json_schema")
    assert setting.bounding_box()["height"] < 60  # type: ignore[index]
    setting.locator("summary").click()
    assert '"additionalProperties": false' in setting.locator("pre").inner_text()


def test_numbers_of_a_list_that_begins_late_are_whole(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("sum", reply(text("4712. Done.")))
    with Wire(page_stack) as wire:
        response_id = wire.create(model="local/sum", input="How many?")["id"]
        page.goto(f"/ui/chain/{response_id}")
        assert page.find(".md ol").evaluate("one => getComputedStyle(one).listStylePosition") == "inside"
        wire.http.delete(f"/responses/{response_id}")


def test_answer_to_an_approval_is_one_line_that_names_its_call_and_its_turn(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream, mcp: McpServers
) -> None:
    upstream.script("asker", [reply(tool_call(0, "call_1", "orders__add", '{"a": 1, "b": 2}')), reply(text("Three."))])
    server = {"type": "mcp", "server_label": "orders", "server_url": mcp.url("mcp"), "require_approval": "always"}
    with Wire(page_stack) as wire:
        requested = wire.create(model="local/asker", input="Add.", tools=[server])
        [request] = [item for item in requested["output"] if item["type"] == "mcp_approval_request"]
        answer = [{"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}]
        response_id = wire.create(
            model="local/asker", previous_response_id=requested["id"], input=answer, tools=[server]
        )["id"]
        call = 'Approved: add {"a": 1, "b": 2}'
        page.goto(f"/ui/chain/{response_id}")
        page.find(".turn[data-here=yes] .answer-line", call)
        assert page.find(".tree [aria-current]").inner_text() == call
        page.goto(f"/ui/responses/{response_id}")
        page.find(".answer-line", call)
        for each in (response_id, requested["id"]):
            wire.http.delete(f"/responses/{each}")


@pytest.mark.parametrize("earlier", [0, 47], ids=["short", "on_two_pages"])
def test_compaction_in_a_conversation_stands_before_its_question(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream, earlier: int
) -> None:
    upstream.script("memory", [reply(text("Noted. " * 60)), reply(text("Called **Ada**.")), reply(text("Ada."))])
    with Wire(page_stack) as wire:
        conversation = wire.http.post("/conversations", json={}).json()["id"]
        for some in batched([{"type": "message", "role": "assistant", "content": "Earlier."}] * earlier, 20):
            wire.http.post(f"/conversations/{conversation}/items", json={"items": some})
        request = {"model": "local/memory", "conversation": conversation}
        compacting = [{"type": "compaction", "compact_threshold": 100}]
        first = wire.create(input="My name is Ada. " + "And so on. " * 60, **request)["id"]
        second = wire.create(input="What is my name?", context_management=compacting, **request)["id"]
        page.goto(f"/ui/conversations/{conversation}")
        page.find(".message")
        page.page.evaluate("() => window.scrollTo(0, document.body.scrollHeight)")
        page.find(".compaction summary").click()
        assert page.find(".compaction strong").inner_text() == "Ada"
        kinds = "all => all.map((one) => one.dataset.role ?? one.dataset.kind)"
        found = page.page.eval_on_selector_all(".item", kinds)
        assert found == ["assistant"] * earlier + ["user", "assistant", "compaction", "user", "assistant"]
        for each in (first, second):
            wire.http.delete(f"/responses/{each}")


def test_raw_json_is_the_object_of_the_api(page: BrowserPage, page_stack: LiveStack, showcase: Showcase) -> None:
    page.goto(f"/ui/responses/{showcase.person}")
    page.find("summary", "Raw JSON").click()
    shown = json.loads(page.find(".raw pre").inner_text())
    with Wire(page_stack) as wire:
        assert shown == wire.get(f"/{showcase.person}").json()


def test_chat_requests_are_shown_round_by_round(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/responses/{showcase.trip}")
    page.find("summary", "Chat requests").click()
    page.find(".requests summary", "Round 2").click()
    sent = json.loads(page.find(".requests details[open] pre").inner_text())
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "tool", "tool"]


@pytest.mark.parametrize(
    ("name", "selector", "words"),
    [
        ("person", ".code[data-language=json]", '"city": "Lisbon"'),
        ("refusal", ".refusal", "Refused: I cannot help to open a lock"),
        ("broken", ".notice.bad", "connection"),
        ("cut", ".notice.warn", "The bound on output tokens was reached."),
        ("question", ".tool", "get_weather"),
        ("picture", ".chip", "report.txt"),
    ],
)
def test_special_outputs_are_plain_to_see(
    page: BrowserPage, showcase: Showcase, name: str, selector: str, words: str
) -> None:
    page.goto(f"/ui/responses/{getattr(showcase, name)}")
    assert words in page.find(f".talk {selector}", words).inner_text()


def test_image_of_an_input_is_shown_from_its_data(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/responses/{showcase.picture}")
    page.find(".image img")
    page.until("() => document.querySelector('.image img').naturalWidth === 1")


def test_link_of_an_item_covers_nothing_on_a_phone(browser: Browser, page_stack: LiveStack, showcase: Showcase) -> None:
    with browser.page(page_stack.base_url, viewport={"width": 360, "height": 740}, has_touch=True) as page:
        page.goto(f"/ui/responses/{showcase.trip}")
        page.find(".item.tool > .permalink")
        assert page.page.evaluate(COVERED) == []


def test_file_of_an_input_is_downloaded_under_its_name(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("seer", reply(text("A bird.")))
    with Wire(page_stack) as wire:
        form = {"purpose": "assistants"}
        stored = wire.http.post("/files", files={"file": ("birds.txt", b"heron")}, data=form).json()["id"]
        content = [{"type": "input_file", "file_id": stored}]
        response_id = wire.create(model="local/seer", input=[{"role": "user", "content": content}])["id"]
        page.goto(f"/ui/responses/{response_id}")
        with page.page.expect_download() as saved:
            page.find(".chip button", stored).click()
        assert saved.value.suggested_filename == "birds.txt"
        assert saved.value.path().read_text() == "heron"
        for each in (f"/files/{stored}", f"/responses/{response_id}"):
            wire.http.delete(each)


def test_items_are_moved_through_and_opened_by_keys(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/responses/{showcase.trip}")
    page.find(".tool[data-failed=yes]")
    page.press("j", "j", "j", "j")
    page.press("Enter")
    page.until("() => document.activeElement.querySelector('details').open")
    page.press("e")
    page.until("() => [...document.querySelectorAll('.item details')].every((found) => found.open)")
    page.press("h")
    page.find("h1", "Chain")
    assert page.path == f"/ui/chain/{showcase.trip}"


def test_menu_stays_open_if_the_answer_to_cancel_arrives_after_the_end_of_the_stream(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("endless", reply(text("First ", "second"), hold=1))
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.page.route("**/cancel", hold)
    with Wire(page_stack) as wire:
        response_id = wire.post({"model": "local/endless", "input": "Count to ten.", "background": True}).json()["id"]
        page.goto(f"/ui/responses/{response_id}")
        page.find(".growing .message", "First")
        page.press("x")
        answer = wire.http.post(f"/responses/{response_id}/cancel")
        page.find(".notice", "Cancelled")
        page.press("y")
        held[0].fulfill(status=answer.status_code, body=answer.text, content_type="application/json")
        page.find(".toast", "Cancelled")
        page.page.wait_for_load_state("networkidle")
        page.find(".menu[open]")
        wire.http.delete(f"/responses/{response_id}")


def test_everything_on_the_page_of_a_response_is_reached_by_keys(
    browser: Browser, page_stack: LiveStack, showcase: Showcase, upstream: Upstream
) -> None:
    upstream.script("endless", reply(text("First ", "second"), hold=1))
    with Wire(page_stack) as wire, browser.page(page_stack.base_url, permissions=["clipboard-write"]) as page:
        response_id = wire.post({"model": "local/endless", "input": "Count to nine.", "background": True}).json()["id"]
        page.goto(f"/ui/responses/{response_id}")
        page.find(".growing .message", "First")
        page.press("x")
        page.find(".notice", "Cancelled")
        page.press("y", "Enter")
        page.find(".toast", "Copied as curl")
        page.press("c")
        page.find("h1", "Compare with")
        page.page.go_back()
        page.find(".notice", "Cancelled")
        page.press("Delete")
        page.find("dialog", "Delete this response?")
        page.press("Tab", "Enter")
        page.find(".list-row")
        assert wire.get(f"/{response_id}").status_code == 404
        page.goto(f"/ui/responses/{showcase.trip}")
        page.find(".talk")
        page.press("/")
        page.until("() => document.activeElement.name === 'text'")
        page.page.keyboard.type("sleeping tide")
        page.until("() => document.querySelectorAll('.list-row').length === 1")
        page.find(f".list-row[data-id={showcase.harbour}]")


def test_request_copied_as_curl_makes_the_same_request(
    browser: Browser, page_stack: LiveStack, showcase: Showcase, upstream: Upstream
) -> None:
    upstream.script("writer", reply(text("Again.")))
    command = copied(browser, page_stack, showcase.harbour, "curl")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    created = json.loads(done.stdout)
    with Wire(page_stack) as wire:
        wire.http.delete(f"/responses/{created['id']}")  # other tests count this chain
    assert created["previous_response_id"] == showcase.root
    assert created["metadata"] == {"team": "poems"}
    last = upstream.requests("writer")[-1].body["messages"][-1]
    assert last["content"] == "And one about a harbour at night."


def test_request_copied_as_python_makes_the_same_request(
    browser: Browser, page_stack: LiveStack, showcase: Showcase, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("json", reply(text('{"name": "Ada", "city": "Lisbon"}')))
    program = copied(browser, page_stack, showcase.person, "Python")
    (tmp_path / "made.py").write_text(program)
    env = {"OPENAI_API_KEY": "none", "NO_PROXY": "*"}
    done = subprocess.run(
        [sys.executable, "made.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(done.stdout) == {"name": "Ada", "city": "Lisbon"}
    assert upstream.requests("json")[-1].body["response_format"]["type"] == "json_schema"


def test_request_copied_as_typescript_makes_the_same_request(
    browser: Browser, page_stack: LiveStack, showcase: Showcase, upstream: Upstream
) -> None:
    upstream.script("caller", reply(text("Later.")))
    program = copied(browser, page_stack, showcase.question, "TypeScript")
    folder = installed("openai-node")
    node = installed("node") / "bin" / "node"
    done = subprocess.run(
        [node, "--input-type=module-typescript", "-"],
        input=program,
        cwd=folder,
        env={"OPENAI_API_KEY": "none", "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "Later.\n", done.stderr
    assert upstream.requests("caller")[-1].body["tools"][0]["function"]["name"] == "get_weather"


def test_response_is_deleted_after_a_question(page: BrowserPage, page_stack: LiveStack, upstream: Upstream) -> None:
    upstream.script("gone", reply(text("Soon gone.")))
    with Wire(page_stack) as wire:
        response_id = wire.create(model="local/gone", input="Be brief.")["id"]
        page.goto(f"/ui/responses/{response_id}")
        page.page.get_by_role("button", name="Delete this response").click()
        page.find("dialog", "cannot be brought back")
        page.page.get_by_role("button", name="Delete", exact=True).click()
        page.find(".list-row")
        assert page.path == "/ui"
        assert wire.get(f"/{response_id}").status_code == 404


def test_waiting_response_is_shown_as_answered_when_another_tab_answers_it(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("asked", [reply(tool_call(0, "call_3", "count", "{}")), reply(text("Nine."))])
    tools = [{"type": "function", "name": "count", "parameters": {"type": "object", "properties": {}}}]
    with Wire(page_stack) as wire:
        response_id = wire.create(model="local/asked", input="Count them.", tools=tools)["id"]
        page.goto(f"/ui/responses/{response_id}")
        page.find(".notice.warn", "Answer in the playground")
        answer = [{"type": "function_call_output", "call_id": "call_3", "output": "9"}]
        later = wire.create(model="local/asked", input=answer, previous_response_id=response_id)["id"]
        page.find(".head .status[data-status=completed]")
        page.gone(".notice.warn")
        for each in (later, response_id):
            wire.http.delete(f"/responses/{each}")


def test_program_its_calls_and_its_output_read_as_one(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    code = 'const all = await Promise.all(["desk", "lamp"].map(article => tools.stock({article})));\nreturn all.length;'
    run, fail = (json.dumps({"code": each}) for each in (code, 'throw new Error("No such shelf");'))
    programs = [reply(tool_call(0, "c1", "run_program", run)), reply(tool_call(0, "c2", "run_program", fail))]
    upstream.script("programs", [*programs, reply(text("There are two."))])
    parameters = {"type": "object", "properties": {"article": {"type": "string"}}}
    stock = {"type": "function", "name": "stock", "parameters": parameters, "allowed_callers": ["programmatic"]}
    request = {"model": "local/programs", "tools": [{"type": "programmatic_tool_calling"}, stock]}
    with Wire(page_stack) as wire:
        asked = wire.create(input="How many are there?", **request)
        page.goto(f"/ui/responses/{asked['id']}")
        page.find(".notice.warn", "Answer in the playground")
        program, *calls = page.page.locator(".items > [data-kind=tool]").all()
        assert "waits for the client" in program.inner_text()
        program.locator("summary").click()
        assert program.locator("pre").inner_text() == code
        assert program.locator("[data-language=javascript]").count() == 1
        assert [call.get_attribute("data-by-program") for call in calls] == ["yes", "yes"]
        calls[0].locator("summary").click()
        calls[0].get_by_text("called by a program").wait_for()
        left = [each.evaluate("element => element.getBoundingClientRect().left") for each in (program, calls[0])]
        assert left[0] < left[1]
        assert page.axe() == []
        made = asked["output"][1:]
        outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": "7"} for call in made]
        answered = wire.create(input=outputs, previous_response_id=asked["id"], **request)
        page.goto(f"/ui/responses/{answered['id']}")
        page.find("[data-kind=tool_output]", "Result of a program")
        failed = page.find("[data-kind=tool][data-failed=yes]", "program throw new Error")
        assert "No such shelf" in failed.locator(".result").inner_text()
        page.goto(f"/ui/responses/{answered['id']}/replay")
        page.find(".event")
        page.press("End", "ArrowLeft")
        page.find(".growing [data-kind=tool]", "program throw new Error")
        page.find(".growing [data-kind=tool_output][data-failed=yes]", "No such shelf")
        [row] = [each for each in wire.http.get("/ui/responses").json()["data"] if each["id"] == answered["id"]]
        assert (row["tool_calls"], row["failed_tool_calls"], row["waits_for"]) == (2, 1, None)
        for each in (answered, asked):
            wire.http.delete(f"/responses/{each['id']}")


def test_program_runs_on_the_page_until_its_output_is_there(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream, mcp: McpServers
) -> None:
    code = json.dumps({"code": "return await tools.mcp__hold({word: 'seven'});"})
    said = reply(text("It is ", "seven."), hold=1)
    upstream.script("runs", [reply(tool_call(0, "c1", "run_program", code)), said])
    server = {"type": "mcp", "server_label": "mcp", "server_url": mcp.url("mcp"), "require_approval": "never"}
    tools = [{"type": "programmatic_tool_calling"}, {**server, "allowed_callers": ["programmatic"]}]
    program, held = ".growing [aria-label^='Tool program']", mcp.held("hold")
    with Wire(page_stack) as wire:
        response_id = wire.create(model="local/runs", input="Hold.", tools=tools, background=True)["id"]
        page.goto(f"/ui/responses/{response_id}")
        page.find(f"{program} [data-state=run]")
        wait_until(lambda: mcp.held("hold") > held)
        mcp.release()
        page.find(".growing [data-kind=message]", "It is")
        page.find(f"{program} [data-state=good]")
        upstream.release("runs")
        page.find(".head .status[data-status=completed]")
        wire.http.delete(f"/responses/{response_id}")


def test_response_that_was_deleted_elsewhere_leads_back_to_the_list(
    browser: Browser, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("gone", reply(text("Soon gone.")))
    with Wire(page_stack) as wire, browser.page(page_stack.base_url) as page:
        response_id = wire.create(model="local/gone", input="Be brief.")["id"]
        page.goto(f"/ui/responses/{response_id}")
        page.find(".message[data-role=assistant]")
        wire.http.delete(f"/responses/{response_id}")
        page.press("Delete", "Tab", "Enter")
        page.find(".toast", "Already deleted")
        page.find("h1", "Responses")
        page.page.go_back()
        page.find("h1", "Not found")


def test_tools_that_could_not_be_listed_are_marked_with_the_reason(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("lost", reply(text("Unseen.")))
    server = {"type": "mcp", "server_label": "lost", "server_url": "http://127.0.0.1:9/mcp"}
    with Wire(page_stack) as wire:
        request = {"model": "local/lost", "input": "Call.", "tools": [server], "background": True}
        response_id = wire.post(request).json()["id"]
        page.goto(f"/ui/responses/{response_id}")
        page.find(".head .status[data-status=failed]")
        page.find(".tool[data-failed=yes]", "lost: 0 tools").get_by_text("could not be reached").wait_for()
        page.goto(f"/ui/responses/{response_id}/replay")
        page.find(".event")
        page.press("End", "ArrowLeft")
        page.find(".growing .tool[data-failed=yes]", "could not be reached")
        wire.http.delete(f"/responses/{response_id}")


def test_background_response_grows_on_its_page_and_is_cancelled(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("endless", reply(text("First ", "second ", "third"), hold=2))
    with Wire(page_stack) as wire:
        response_id = wire.post({"model": "local/endless", "input": "Count.", "background": True}).json()["id"]
        page.goto(f"/ui/responses/{response_id}")
        page.find(".growing .message", "First second")
        page.find(".panel .block", "Usage").get_by_text("Not known before its end.").wait_for()
        page.page.get_by_role("button", name="Cancel").click()
        page.find(".notice", "Cancelled")
        assert wire.retrieve(response_id)["status"] == "cancelled"


def test_missing_response_is_named_and_links_back(browser: Browser, page_stack: LiveStack) -> None:
    with browser.page(page_stack.base_url) as page:
        page.goto("/ui/responses/resp_000000000000000000000000")
        page.find("h1", "Not found")
        assert page.find(".empty a", "All responses").get_attribute("href") == "/ui"


@pytest.mark.both_hosts
def test_chain_shows_all_turns_and_its_branches_as_a_tree(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/chain/{showcase.darker}")
    page.find(".turn[data-here=yes]", "what nobody reads")
    turns = page.page.eval_on_selector_all(".turn", "turns => turns.map((turn) => turn.id)")
    assert turns == [showcase.root, showcase.gulls, showcase.darker]
    assert page.page.locator(".tree > li").count() == 3
    page.find(".tree ul a", "And one about a harbour at night.").click()
    page.find(".turn[data-here=yes]", "for the sleeping tide")
    assert page.path == f"/ui/chain/{showcase.harbour}"


def test_links_of_a_turn_stay_together_on_a_phone(page: BrowserPage, showcase: Showcase) -> None:
    page.page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/ui/chain/{showcase.darker}")
    links = page.find(".turn[data-here=yes] .turn-head").locator("a")
    boxes = [one.bounding_box() for one in links.all()]
    assert len({box["y"] for box in boxes if box}) == 1
    assert max(box["x"] + box["width"] for box in boxes if box) > 370


def test_branches_of_a_turn_are_in_one_column_and_in_the_same_order_from_each(
    page: BrowserPage, showcase: Showcase
) -> None:
    for subject in (showcase.gulls, showcase.harbour):
        page.goto(f"/ui/chain/{subject}")
        page.find(".tree [aria-current]")
        branches = page.page.locator(".tree [data-fork] a")
        assert [branches.nth(number).get_attribute("href") for number in range(2)] == [
            f"/ui/chain/{showcase.harbour}",
            f"/ui/chain/{showcase.gulls}",
        ]
        assert len({box["x"] for one in branches.all() if (box := one.bounding_box())}) == 1


def test_long_chain_is_read_to_its_beginning_while_its_top_is_in_sight(
    page: BrowserPage, page_stack: LiveStack
) -> None:
    database = page_stack.state_dir / "responses.db"
    turns = [(f"Question {number}?", "Yes.") for number in range(70)]
    with ThreadPoolExecutor(1) as elsewhere:  # the browser's event loop runs in this thread
        [*_, last] = elsewhere.submit(seed, database, turns).result()
    page.goto(f"/ui/chain/{last['id']}")
    page.find(".turn[data-here=yes]")
    page.page.evaluate("() => setInterval(() => window.scrollTo(0, 0), 20)")
    page.until("() => document.querySelectorAll('.turn').length === 70")
    page.find(".turn", "Question 0?")
    with Wire(page_stack) as wire:
        for created in page.page.eval_on_selector_all(".turn", "turns => turns.map((turn) => turn.id)"):
            wire.http.delete(f"/responses/{created}")


def test_chain_of_a_root_lists_its_successors(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/chain/{showcase.root}")
    continued = page.page.locator(".pick a")
    continued.first.wait_for()
    assert [continued.nth(index).get_attribute("href") for index in range(2)] == [
        f"/ui/chain/{showcase.harbour}",
        f"/ui/chain/{showcase.gulls}",
    ]


def test_call_of_a_client_is_shown_with_its_output(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/chain/{showcase.answered}")
    page.find(".message", "It is 4 °C in Oslo.")
    page.find(".item", "Result of get_weather").locator("summary").first.click()
    page.find(".item", '"celsius"')


def test_conversation_object_is_shown_as_one_conversation(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/conversations/{showcase.conversation}")
    page.find(".message", "Your name is Ada.")
    assert page.page.locator(".message").evaluate_all(
        "all => all.map((one) => one.innerText.split(/\\s*\\n\\s*/))"
    ) == [
        ["User", "I am Ada."],
        ["Assistant", "Hello, Ada."],
        ["User", "What is my name?"],
        ["Assistant", "Your name is Ada."],
    ]
    assert "names" in page.find(".panel").inner_text()


@pytest.mark.both_hosts
def test_replay_steps_through_the_events_in_both_directions(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/responses/{showcase.harbour}/replay")
    page.find(".event")
    total = page.page.locator(".player input[type=range]").get_attribute("max")
    assert int(total or 0) > 8
    page.press("End")
    page.find(".growing .message", "for the sleeping tide.")
    page.press("ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft")
    page.gone(".growing .message", "for the sleeping tide.")
    page.press("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight")
    page.find(".growing .message", "for the sleeping tide.")
    page.press("Home")
    page.gone(".growing .message")
    page.find(".stage .talk", "Nothing has been sent yet")
    assert page.page.title() == "Replay: And one about a harbour at night."


PAUSE = """() => new Promise((paused) => {
  const look = () => {
    if (!document.querySelector(".growing .reasoning")) return requestAnimationFrame(look);
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key: " ", bubbles: true }));
    paused();
  };
  look();
})"""
"""Presses the key as soon as there is reasoning: the replay must not end before."""


def test_replay_plays_at_its_pace_and_pauses(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/responses/{showcase.trip}/replay")
    page.find(".event")
    page.press("-", "-")
    assert page.find(".player select").input_value() == "0.25"
    page.press(" ")
    page.page.evaluate(PAUSE)
    page.find(".growing .reasoning")
    here = page.find(".player input[type=range]").input_value()
    page.page.wait_for_timeout(300)
    assert page.find(".player input[type=range]").input_value() == here
    page.press("+", "+", "+", "+", "+")
    page.press(" ")
    page.find(".growing .message", "Bring waterproof shoes")


def test_replay_follows_the_text_and_ends_with_the_rendered_response(page: BrowserPage, showcase: Showcase) -> None:
    page.page.set_viewport_size({"width": 1280, "height": 420})
    page.goto(f"/ui/responses/{showcase.trip}/replay")
    page.find(".event")
    page.find(".player select").select_option("16")
    page.press(" ")
    page.find(".growing .message .md")
    page.until(
        "() => { const talk = document.querySelector('.stage .talk');"
        " return talk.scrollHeight > talk.clientHeight && talk.scrollHeight - talk.scrollTop - talk.clientHeight < 61 }"
    )
    page.find(".event-json summary").click()
    page.find(".event-json pre")
    page.until(
        "() => { const row = document.querySelector('.event[aria-current]').getBoundingClientRect();"
        " return row.bottom <= document.querySelector('.event-json').getBoundingClientRect().top + 1 }"
    )
    last = page.find(".event[aria-current] .num").inner_text()
    assert page.find(".player output").inner_text().startswith(f"{last} / {last}")
    page.press("ArrowLeft")
    page.gone(".growing .message .md")


def test_replay_has_the_times_of_the_page_of_the_response(page: BrowserPage, showcase: Showcase) -> None:
    def shown(place: str) -> list[str]:
        return page.page.locator(f"{place} .lane").all_inner_texts()

    page.goto(f"/ui/responses/{showcase.trip}")
    total = page.find(".panel .block h2", "Timing").locator(".num").inner_text()
    lanes, ran = shown(".panel"), page.page.locator(".tool summary > .num").all_inner_texts()
    page.goto(f"/ui/responses/{showcase.trip}/replay")
    page.find(".event-lanes .lane")
    assert shown(".event-lanes") == lanes
    assert page.find(".head-title .row").inner_text().endswith(total)
    page.press("End", "ArrowLeft")
    page.until("() => !document.querySelector('.growing .md')")
    assert page.page.locator(".growing .tool summary > .num").all_inner_texts() == ran
    page.find(".event-lanes .lane a", "fail").click()
    page.find(".event[aria-current]", "output_item.added")
    page.find(".event", "reasoning_summary_text.done").click()
    assert page.page.locator(".event-lanes .lane[data-now] .lane-name").all_inner_texts() == ["Model round 2"]


def test_replay_on_a_phone_has_no_hole_below_a_short_text(page: BrowserPage, showcase: Showcase) -> None:
    page.page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/ui/responses/{showcase.harbour}/replay")
    page.find(".event")
    talk, events = page.find(".stage .talk").bounding_box(), page.find(".stage .events").bounding_box()
    assert talk
    assert events
    assert events["y"] - talk["y"] < 60


def test_two_responses_are_compared_word_by_word(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/compare?a={showcase.root}&b={showcase.gulls}")
    page.find(".diff")
    assert page.page.locator(".diff del").all_inner_texts() == ["gulls write", "wipe", "white"]
    assert page.page.locator(".diff ins").all_inner_texts() == ["tide writes", "wipes", "long"]
    assert page.page.locator(".pair > section").count() == 2
    page.goto(f"/ui/compare?a={showcase.root}&b={showcase.root}")
    page.find(".block", "No fact differs.")


def test_response_without_a_partner_offers_others_to_compare(page: BrowserPage, showcase: Showcase) -> None:
    page.goto(f"/ui/compare?a={showcase.root}")
    page.find(".pick a").click()
    page.find(".diff")
    assert page.path.startswith(f"/ui/compare?a={showcase.root}&b=resp_")
