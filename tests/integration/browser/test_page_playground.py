"""The playground and the live view of the built-in page in a real browser."""

import json
from threading import Event
from typing import Final, Literal

import pytest
from playwright.sync_api import Request

from tests.support.browser import Browser, BrowserPage
from tests.support.image_server import EVENTS, ImageServer, data_url, frames, png, steps
from tests.support.mcp_server import McpServers
from tests.support.showcase import WEATHER, Showcase
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text, tool_call
from tests.support.waiting import wait_until
from tests.support.web import Answer, Web
from tests.support.wire import Json, Wire

pytestmark = pytest.mark.live

IN_ORDER: Final = """() => {
  const cards = [...document.querySelectorAll('.running .live-row')];
  const places = cards.map((card) => Number(/place (\\d+)/.exec(card.innerText)?.[1] ?? 0));
  const running = places.filter((place) => !place).length;
  return running > 0 && places.every((place, index) => index === 0 || places[index - 1] <= place)
    && document.querySelector('.head').innerText.includes(`${running} running`);
}"""
PHONE: Final = {"width": 390, "height": 844}


def choose(page: BrowserPage, model: str) -> None:
    """Choose a scripted model, which the server does not list."""
    page.until("() => document.querySelector('select[name=model]')?.options.length > 0")
    page.page.evaluate(
        "name => { const field = document.querySelector('select[name=model]');"
        " field.append(new Option(name, name)); field.value = name; field.dispatchEvent(new Event('change')) }",
        model,
    )


def ask(page: BrowserPage, words: str) -> None:
    """Write a message and send it with the keyboard."""
    page.page.locator("textarea[name=input]").fill(words)
    page.press("Control+Enter")


def last_body(upstream: Upstream, model: str) -> Json:
    """Return the model server's last chat request for a model."""
    body: Json = upstream.requests(model)[-1].body
    return body


SCHEMES: Final[tuple[Literal["dark", "light"], ...]] = ("dark", "light")
WRITTEN: Final = "# Wind\n\nSalt **wind** and \\(x^2\\).\n\n```python\n# one\n\ndef f():\n    return 1\n```\n\n- a\n\n- b\n\nThe *last* one"


@pytest.mark.both_hosts
def test_finished_blocks_of_an_answer_are_rendered_while_the_last_one_is_plain(
    browser: Browser, page_stack: LiveStack, upstream: Upstream
) -> None:
    pieces = [WRITTEN[at : at + 9] for at in range(0, len(WRITTEN), 9)]
    upstream.script("poet", reply(text(*pieces, "."), hold=len(pieces)))
    with browser.page(page_stack.base_url, permissions=["clipboard-read", "clipboard-write"]) as page:
        rendered: list[str] = []
        page.page.on("request", lambda one: rendered.extend(texts_of(one)))
        page.goto("/ui/playground")
        choose(page, "local/poet")
        ask(page, "Write.")
        for whole in (False, True):
            growing = ".growing .message " if not whole else ".message[data-role=assistant] .md "
            assert page.find(growing + "strong").inner_text() == "wind"
            page.find(growing + "msup", "x")
            page.until(f"() => document.querySelectorAll('{growing} li').length === 2")
            assert page.find(growing + "pre .hl-keyword").inner_text() == "def"
            page.find(growing + ".code").hover()
            page.page.evaluate("() => navigator.clipboard.writeText('')")
            page.find(growing + ".code button").click()
            wait_until(lambda: page.page.evaluate("() => navigator.clipboard.readText()") != "")
            assert page.page.evaluate("() => navigator.clipboard.readText()") == "# one\n\ndef f():\n    return 1\n"
            for scheme in SCHEMES:
                page.page.emulate_media(color_scheme=scheme)
                assert page.axe() == []
            if not whole:
                assert page.find(".growing .plain").inner_text() == "The *last* one"
                upstream.release("poet")
                page.find(".message[data-role=assistant] .md em", "last")
        assert rendered
        assert WRITTEN.startswith("".join(rendered).removesuffix("The *last* one."))  # each block is sent once
        assert page.path.startswith("/ui/playground?from=resp_")
        page.check_quiet()


def texts_of(request: Request) -> list[str]:
    """Return the texts that a request has rendered."""
    body = request.post_data_json if request.url.endswith("/v1/ui/markdown") else None
    return body["texts"] if body else []


SPLIT: Final = """async ([text, size]) => {
  const { BlockSplitter } = await import(document.querySelector('script[type=module]').src.replace('app.js', 'growing_text.js'));
  const splitter = new BlockSplitter();
  const blocks = [];
  let at = 0;
  for (let from = 0; from < text.length; from += size)
    for (const length of splitter.push(text.slice(from, from + size))) blocks.push(text.slice(at, (at += length)));
  return [...blocks, text.slice(at)].map((block) => block.trim());
}"""
BLOCKS: Final = (
    "# A heading",
    "A paragraph\nof two lines.",
    "- a list\n\n- whose items\n\n  have paragraphs\n\n      code",
    "```py\n\n# no heading\n\n~~~\n```",
    "~~~~\n```\n\n~~~\n\n~~~~",
    "$$\na\n\n+ b\n$$",
    "\\[ a\n\nb \\]",
    "\\begin{align*}\na\n\nb\n\\end{align*}",
    "1. one\n\n2. two\n\n   ```\n   x\n\n   ```\n\n3. three",
    "> a quote\n> of two lines",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "The end, in a long line.",
)


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_blocks_of_a_text_are_found_whatever_its_pieces_are(page: BrowserPage, size: int) -> None:
    page.goto("/ui")
    assert page.page.evaluate(SPLIT, ["\n\n".join(BLOCKS), size]) == list(BLOCKS)


def test_next_question_continues_from_the_last_answer(
    page: BrowserPage, showcase: Showcase, upstream: Upstream
) -> None:
    upstream.script("poet", reply(text("Further.")))
    page.goto(f"/ui/playground?from={showcase.root}")
    choose(page, "local/poet")
    ask(page, "And then?")
    page.find(".message[data-role=assistant] .md", "Further.")
    ask(page, "And after that?")
    page.until("() => document.querySelectorAll('.message[data-role=assistant] .md').length === 3")
    texts = [message["content"] for message in last_body(upstream, "poet")["messages"] if message["role"] == "user"]
    assert texts == ["Write a haiku about the sea.", "And then?", "And after that?"]


def test_settings_files_and_tools_reach_the_model(page: BrowserPage, upstream: Upstream) -> None:
    upstream.script("poet", reply(text("Seen.")))
    page.goto("/ui/playground")
    choose(page, "local/poet")
    page.page.get_by_label("Instructions").fill("Be brief.")
    page.page.get_by_label("Other tools, as JSON").fill(json.dumps([WEATHER]))
    page.find("summary", "Settings").click()
    page.page.get_by_label("Temperature").fill("0.5")
    page.page.get_by_label("Any other fields, as JSON").fill('{"seed": 7}')
    page.page.locator("input[type=file]").set_input_files(
        {"name": "no<b>tes.txt", "mimeType": "text/plain", "buffer": b"the word is heron"}
    )
    assert "no<b>tes.txt" in page.find(".files .chip").inner_text()
    ask(page, "What is the word?")
    page.find(".message[data-role=assistant] .md", "Seen.")
    sent = last_body(upstream, "poet")
    assert (sent["temperature"], sent["seed"]) == (0.5, 7)
    assert sent["messages"][0]["content"] == "Be brief."
    assert "heron" in json.dumps(sent["messages"])
    assert sent["tools"][0]["function"]["name"] == "get_weather"


def test_call_of_a_function_is_answered_by_the_viewer(page: BrowserPage, upstream: Upstream) -> None:
    upstream.script(
        "caller", [reply(tool_call(0, "c1", "get_weather", '{"city": "Oslo"}')), reply(text("Four degrees."))]
    )
    page.goto("/ui/playground")
    choose(page, "local/caller")
    page.page.get_by_label("Other tools, as JSON").fill(json.dumps([WEATHER]))
    ask(page, "How warm is it in Oslo?")
    page.find(".answer-call textarea").fill("4 °C")
    page.press("Enter")
    page.find(".message[data-role=assistant] .md", "Four degrees.")
    assert last_body(upstream, "caller")["messages"][-1]["content"] == "4 °C"


def test_output_that_is_written_is_sent_with_a_message(page: BrowserPage, upstream: Upstream) -> None:
    calls = [tool_call(number, f"c{number}", "get_weather", "{}") for number in range(2)]
    upstream.script("caller", [reply(*calls), reply(text("Four degrees, I guess."))])
    page.goto("/ui/playground")
    choose(page, "local/caller")
    page.page.get_by_label("Other tools, as JSON").fill(json.dumps([WEATHER]))
    ask(page, "How warm is it?")
    page.find(".answer-call textarea").first.fill("4 °C")
    ask(page, "Guess the other one.")
    page.find(".message[data-role=assistant] .md", "Four degrees, I guess.")
    messages = last_body(upstream, "caller")["messages"]
    assert [(each["role"], each.get("tool_call_id")) for each in messages[2:4]] == [("tool", "c0"), ("tool", "c1")]
    assert (messages[2]["content"], messages[-1]["content"]) == ("4 °C", "Guess the other one.")
    page.gone(".answer-call")


def test_mcp_server_is_used_and_its_calls_are_shown(page: BrowserPage, upstream: Upstream, mcp: McpServers) -> None:
    upstream.script("caller", [reply(tool_call(0, "c1", "mcp__add", '{"a": 2, "b": 3}')), reply(text("Five."))])
    page.goto("/ui/playground")
    choose(page, "local/caller")
    page.page.get_by_label("MCP server").fill(mcp.url("mcp"))
    ask(page, "What is two and three?")
    form = page.find(".answer-call", "mcp: add")
    page.find("[data-kind=approval]", "waits for approval")
    assert form.locator("pre").inner_text() == '{\n  "a": 2,\n  "b": 3\n}'
    assert form.locator("[aria-pressed=true], :checked").count() == 0
    assert page.axe() == []
    form.get_by_role("button", name="Approve").focus()
    page.press("Tab")
    assert page.page.evaluate("() => document.activeElement.innerText") == "Deny"
    page.press("Shift+Tab", "Enter")
    page.find(".message[data-role=assistant] .md", "Five.")
    assert page.page.locator("[data-kind=approval] .tag").all_inner_texts() == ["approved"]
    page.find("[data-kind=tool]", "add").locator("summary").click()
    page.find(".tool-part", "5")


def test_several_approvals_are_sent_when_all_are_given(page: BrowserPage, upstream: Upstream, mcp: McpServers) -> None:
    calls = [tool_call(number, f"c{number}", "mcp__add", f'{{"a": {number}, "b": 3}}') for number in range(2)]
    upstream.script("caller", [reply(*calls), reply(text("One was allowed."))])
    page.goto("/ui/playground")
    choose(page, "local/caller")
    page.page.get_by_label("MCP server").fill(mcp.url("mcp"))
    ask(page, "Add.")
    page.find(".answer-call")
    before = mcp.calls("add")
    page.page.get_by_role("button", name="Deny").nth(1).click()
    assert page.page.get_by_role("button", name="Deny", pressed=True).count() == 1
    page.page.get_by_role("button", name="Approve").first.click()
    page.find(".message[data-role=assistant] .md", "One was allowed.")
    assert mcp.calls("add") == before + 1


def test_programs_can_be_chosen_as_a_tool(page: BrowserPage, upstream: Upstream) -> None:
    upstream.script("programmer", reply(text("Done.")))
    page.goto("/ui/playground")
    choose(page, "local/programmer")
    page.page.get_by_label("Programs").check()
    ask(page, "Count.")
    page.find(".message[data-role=assistant] .md", "Done.")
    [tool] = upstream.requests("programmer")[-1].body["tools"]
    assert tool["function"]["name"] == "run_program"


def test_image_is_shown_while_it_is_generated_and_at_the_end(page: BrowserPage, upstream: Upstream, web: Web) -> None:
    unfinished, finished = frames(*steps(png(1), png(2), usage={"input_tokens": 7, "output_tokens": 515}))
    held = Event()
    ImageServer(web).next = [Answer([unfinished, held, finished], headers=EVENTS)]
    upstream.script(
        "painter", [reply(tool_call(0, "c1", "generate_image", '{"prompt": "An otter"}')), reply(text("So."))]
    )
    page.goto("/ui/playground")
    choose(page, "local/painter")
    page.page.get_by_label("Other tools, as JSON").fill('[{"type": "image_generation", "partial_images": 1}]')
    ask(page, "Draw an otter.")
    page.find(f".growing img[src='{data_url(png(1))}']")
    held.set()
    page.find(".message[data-role=assistant] .md", "So.")
    page.find("[data-kind=tool]", "image_generation An otter")
    page.find(f"img[src='{data_url(png(2))}']")
    page.until("() => document.querySelector('.image img').naturalWidth === 1")
    page.page.locator("a[href*='/ui/responses/resp_']").first.click()
    assert page.find(".usage:has-text('Tokens of images') dd").inner_text() == "522"


def test_only_hosted_tools_of_the_server_are_offered(page: BrowserPage) -> None:
    page.goto("/ui/playground")
    page.find(".options .choice", "not available on this server")
    closed = "() => [...document.querySelectorAll('.options :disabled')].map((field) => field.name)"
    assert page.page.evaluate(closed) == ["code_interpreter", "vector_store_ids"]
    assert page.page.get_by_role("checkbox", name="Web search", exact=True).is_enabled()
    assert (
        page.page.get_by_label("File search")
        .evaluate("field => field.closest('label').innerText")
        .endswith("not available on this server")
    )
    assert page.axe() == []


def test_request_stands_there_as_code_and_changes_with_it(page: BrowserPage) -> None:
    page.goto("/ui/playground")
    choose(page, "local/poet")
    page.page.locator("textarea[name=input]").fill('It\'s "here"')
    page.find(".panel .code", "It'\\''s")
    page.page.get_by_role("button", name="Python", exact=True).click()
    words = page.find(".panel .code pre").inner_text()
    assert 'model="local/poet"' in words
    assert 'input="It\'s \\"here\\""' in words


def test_field_that_is_not_json_is_named(page: BrowserPage) -> None:
    page.goto("/ui/playground")
    choose(page, "local/poet")
    page.page.get_by_label("Other tools, as JSON").fill("[{")
    page.find(".panel .error-text", "Other tools")
    ask(page, "Hello?")
    page.find(".toast", "Other tools")
    assert not [one for one in page.requests if one.startswith("POST")]


def test_enter_sends_and_shift_enter_is_a_new_line(page: BrowserPage, upstream: Upstream) -> None:
    upstream.script("poet", reply(text("Sent.")))
    page.goto("/ui/playground")
    choose(page, "local/poet")
    field = page.find("textarea[name=input]")
    field.focus()
    page.page.keyboard.type("One")
    page.press("Shift+Enter")
    page.page.keyboard.type("two")
    composing = (
        "field => field.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true}))"
    )
    field.evaluate(composing)  # it ends the word of an input method
    assert not page.page.locator(".exchange").count()
    page.press("Enter")
    page.find(".message[data-role=assistant] .md", "Sent.")
    assert last_body(upstream, "poet")["messages"][-1]["content"] == "One\ntwo"
    assert field.input_value() == ""


def test_enter_is_a_new_line_on_a_phone(browser: Browser, page_stack: LiveStack, upstream: Upstream) -> None:
    upstream.script("poet", reply(text("Sent.")))
    with browser.page(page_stack.base_url, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        page.goto("/ui/playground")
        page.find(".panel-fold > summary").tap()
        choose(page, "local/poet")
        page.find(".panel-fold > summary").tap()
        page.find("textarea[name=input]").focus()
        page.page.keyboard.type("One")
        page.press("Enter")
        page.page.keyboard.type("two")
        page.page.get_by_role("button", name="Send").tap()
        page.find(".message[data-role=assistant] .md", "Sent.")
        assert last_body(upstream, "poet")["messages"][-1]["content"] == "One\ntwo"
        page.check_quiet()


def test_server_that_does_not_answer_is_named_and_the_message_is_kept(browser: Browser, page_stack: LiveStack) -> None:
    with browser.page(page_stack.base_url) as page:
        page.goto("/ui/playground")
        choose(page, "local/poet")
        page.page.route("**/*", lambda route: route.abort("connectionrefused"))
        ask(page, "Keep these words.")
        page.find(".notice.bad", "The server does not answer.")
        assert page.find("textarea[name=input]").input_value() == "Keep these words."
        page.find("#nav a", "Live").click()  # whose module has not been read yet
        page.find(".empty", "The server does not answer.")
        page.page.unroute("**/*")
        page.page.get_by_role("button", name="Try again").click()
        page.find(".chart")


def test_stopped_answer_ends_its_request(page: BrowserPage, upstream: Upstream) -> None:
    upstream.script("poet", reply(text("One ", "two ", "three"), hold=2))
    page.goto("/ui/playground")
    choose(page, "local/poet")
    ask(page, "Count.")
    page.find(".growing .message", "One two")
    page.page.get_by_role("button", name="Stop").click()
    page.find(".talk", "Stopped.")
    upstream.wait_for("poet", ended=True)


def test_response_is_continued_with_its_model_instructions_and_tools(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream, mcp: McpServers
) -> None:
    upstream.script("asker", [reply(tool_call(0, "call_1", "orders__add", '{"a": 1, "b": 2}')), reply(text("Three."))])
    server = {"type": "mcp", "server_label": "orders", "server_url": mcp.url("mcp"), "require_approval": "always"}
    with Wire(page_stack) as wire:
        response_id = wire.create(model="local/asker", input="Add one.", instructions="Be brief.", tools=[server])["id"]
        page.goto(f"/ui/responses/{response_id}")
        page.find(".actions a", "Continue").click()
        form = page.find(".answer-call", "orders: add")
        form.get_by_role("button", name="Approve").click()
        page.find(".toast", "write the whole server_url of orders")
        calls = mcp.calls("add")
        page.page.get_by_label("Other tools, as JSON").fill(json.dumps([server]))
        page.page.get_by_role("button", name="Approve").click()
        page.find(".message[data-role=assistant] .md", "Three.")
        assert mcp.calls("add") == calls + 1
        assert last_body(upstream, "asker")["messages"][0]["content"] == "Be brief."
        page.find(".exchange .message", "Add one.")
        page.goto(f"/ui/responses/{response_id}")
        page.find(".head .status[data-status=completed]")


def test_unknown_response_to_continue_is_named(browser: Browser, page_stack: LiveStack) -> None:
    with browser.page(page_stack.base_url) as page:
        page.goto("/ui/playground?from=resp_000000000000000000000000")
        page.find(".notice.bad", "resp_000000000000000000000000")


def test_playground_fits_a_phone_with_its_settings_above_the_conversation(
    browser: Browser, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("poet", reply(text("Salt wind. " * 200)))
    with browser.page(page_stack.base_url, viewport=PHONE, has_touch=True) as page:
        page.goto("/ui/playground")
        page.page.get_by_role("button", name="Send").wait_for()
        inside = "one => { const box = one.getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight }"
        opener = page.find(".panel-fold > summary", "Model and tools")
        parts = [opener, page.find("textarea[name=input]"), page.find("button[type=submit]")]
        assert [one.evaluate(inside) for one in parts] == [True] * 3
        assert not page.page.get_by_label("Instructions").is_visible()
        opener.tap()
        choose(page, "local/poet")
        page.page.get_by_role("checkbox", name="Web search").tap()
        page.find(".panel-fold > summary", "local/poet · 1 kind of tools").tap()
        page.page.get_by_role("checkbox", name="Web search").wait_for(state="hidden")
        page.press("u", "Space")
        page.page.get_by_role("checkbox", name="Images", checked=True).wait_for()
        page.find(".panel-fold > summary").tap()
        page.page.locator("textarea[name=input]").fill("Write.")
        page.page.get_by_role("button", name="Send").tap()
        page.find(".message[data-role=assistant] .md")
        assert [one.evaluate(inside) for one in parts] == [True] * 3
        assert page.fits()
        opener.tap()
        assert page.axe() == []
        page.check_quiet()


def test_everything_in_the_playground_is_reached_by_keys(
    browser: Browser, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("poet", [reply(text("One ", "two ", "three"), hold=2), reply(text("Four."))])
    with browser.page(page_stack.base_url, permissions=["clipboard-read", "clipboard-write"]) as page:
        # Chromium cancels a file chooser at once unless it is intercepted, and Playwright does not wait until it is.
        page.page.on("filechooser", lambda _: None)
        page.goto("/ui/playground")
        choose(page, "local/poet")

        def focused_after(key: str) -> str:
            page.press(key)
            name = str(page.page.evaluate("() => document.activeElement.name"))
            page.press("Escape")
            return name

        assert [focused_after(key) for key in "misu/"] == [
            "model",
            "instructions",
            "temperature",
            "image_generation",
            "input",
        ]
        page.press("/")
        page.page.keyboard.type("Count.")
        page.press("Escape", "l", "y")
        page.find(".toast", "Copied as Python")
        assert 'input="Count."' in page.page.evaluate("() => navigator.clipboard.readText()")
        with page.page.expect_file_chooser() as chooser:
            page.press("a")
        chooser.value.set_files({"name": "word.txt", "mimeType": "text/plain", "buffer": b"heron"})
        page.find(".files .chip", "word.txt")
        page.press("/", "Control+Enter")
        page.find(".growing .message", "One two")
        page.press("Escape", "x")
        page.find(".talk", "Stopped.")
        page.press("/")
        page.page.keyboard.type("Again.")
        page.press("Control+Enter")
        page.find(".message[data-role=assistant] .md", "Four.")
        page.press("Escape", "d")
        page.find("h1", "Again.")
        page.page.go_back()
        page.find(".context", "Goes on from")
        page.press("n")
        page.find(".empty", "Ask a model")
        assert page.path == "/ui/playground"
        page.press("?")
        page.find("dialog", "Attach files")
        page.find("dialog", "Edit the last question")
        page.check_quiet()


@pytest.mark.both_hosts
def test_live_view_shows_a_response_while_it_grows(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    page.goto("/ui/live")
    page.find(".empty", "Nothing runs now")
    upstream.script("slow", reply(text("Half of ", "the answer, ", "and the rest."), hold=2))
    with Wire(page_stack) as wire:
        response_id = wire.post({"model": "local/slow", "input": "Speak slowly.", "background": True}).json()["id"]
        card = page.find(f".live-row[data-id={response_id}]")
        page.find(".live-row .live-tail", "Half of the answer,")
        words = card.inner_text()
        assert "Speak slowly." in words
        assert all(name in words for name in ("worker", "attempt", "lease"))
        upstream.release("slow")
    page.gone(f".live-row[data-id={response_id}]")


def test_charts_follow_the_rates_of_the_server(page: BrowserPage, page_stack: LiveStack, upstream: Upstream) -> None:
    upstream.script("quick", reply(text("Yes.")))
    page.goto("/ui/live")
    page.until("() => parseFloat(document.querySelector('[data-chart=Requests] .value span').textContent) >= 0")
    with Wire(page_stack) as wire:
        for _ in range(5):
            wire.create(model="local/quick", input="Yes?")
    page.until("() => parseFloat(document.querySelector('[data-chart=Requests] .value span').textContent) >= 5")
    page.until("() => /\\d+ ms|s/.test(document.querySelector('[data-chart=\"First token\"] .value span').textContent)")
    assert page.page.locator(".spark .stroke[d]").count() == 6


def test_queued_jobs_are_listed_with_their_places(page: BrowserPage, page_stack: LiveStack, upstream: Upstream) -> None:
    upstream.script("slow", reply(text("One ", "two."), hold=1))
    page.goto("/ui/live")
    with Wire(page_stack) as wire:
        responses = [
            wire.post({"model": "local/slow", "input": f"Job {number}", "background": True}).json()["id"]
            for number in range(60)
        ]
        page.until("() => /place \\d+/.test(document.querySelector('.running').innerText)")
        page.find(".running > .button", "Show all").click()
        page.until(IN_ORDER)
        for one in responses:
            wire.http.post(f"/responses/{one}/cancel")
