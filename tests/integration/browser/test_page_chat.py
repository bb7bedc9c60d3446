"""The chat of the playground: what stays when one leaves it, following of answers, and turns outside the context."""

from typing import Final

import pytest

from tests.integration.browser.test_page_playground import PHONE, ask, choose, last_body
from tests.support.browser import Browser, BrowserPage
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.wire import Wire

pytestmark = pytest.mark.live

PARAGRAPHS: Final = [f"Paragraph {number} of a long answer. " * 6 + "\n\n" for number in range(40)]
LEFT: Final = "document.scrollingElement.scrollHeight - document.scrollingElement.scrollTop - innerHeight"
END_IN_SIGHT: Final = """words => {
  const found = [...document.querySelectorAll('.message .content')].at(-1);
  const composer = document.querySelector('.ask textarea').getBoundingClientRect();
  if (!found?.innerText.includes(words)) return false;
  const box = found.getBoundingClientRect();
  return box.bottom > 0 && box.bottom <= composer.top + 1;
}"""


def question(page: BrowserPage) -> str:
    """Return the message that is being written."""
    return page.find("textarea[name=input]").input_value()


def test_escape_and_navigation_keep_the_answer_the_draft_and_the_transcript(
    page: BrowserPage, upstream: Upstream
) -> None:
    upstream.script("poet", [reply(text("First.")), reply(text("Half ", "and ", "whole."), hold=2)])
    page.goto("/ui/playground")
    choose(page, "local/poet")
    ask(page, "Begin.")
    page.find(".message[data-role=assistant] .md", "First.")
    ask(page, "Count.")
    page.find(".growing .message", "Half and")
    page.page.locator("textarea[name=input]").fill("A draft.")
    page.press("Escape", "Escape")
    page.find(".toast", "Press Esc again to stop the answer")
    page.find("#nav a", "Live").click()
    page.find(".live-row", "Count.")
    page.find("#nav a", "Playground").click()
    page.find(".growing .message", "Half and")
    assert question(page) == "A draft."
    assert page.find(".message[data-role=assistant] .md").inner_text() == "First."
    upstream.release("poet")
    page.find(".message[data-role=assistant] .md", "Half and whole.")
    upstream.wait_for("poet", ended=True)
    assert [one.ended for one in upstream.requests("poet")] == ["completed", "completed"]


def test_answer_that_ran_during_a_reload_is_followed_again_with_its_whole_chain(
    page: BrowserPage, upstream: Upstream
) -> None:
    upstream.script(
        "poet", [*(reply(text(f"Answer {n}.")) for n in (1, 2)), reply(text("Half ", "and ", "whole."), hold=2)]
    )
    page.goto("/ui/playground")
    choose(page, "local/poet")
    for number in (1, 2):
        ask(page, f"Question {number}?")
        page.find(".message[data-role=assistant] .md", f"Answer {number}.")
    page.page.get_by_label("Instructions").fill("Be brief.")
    ask(page, "Question 3?")
    page.find(".growing .message", "Half and")
    page.page.locator("textarea[name=input]").fill("A draft.")
    page.page.locator("input[type=file]").set_input_files(
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"heron"}
    )
    page.find(".files .chip", "notes.txt")
    page.gone(".files progress")
    page.page.reload()
    page.find(".growing .message", "Half and")
    upstream.release("poet")
    page.find(".message[data-role=assistant] .md", "Half and whole.")
    page.until("() => document.querySelectorAll('.message .md').length === 6")
    shown = page.page.locator(".message .content").all_inner_texts()
    assert shown == ["Question 1?", "Answer 1.", "Question 2?", "Answer 2.", "Question 3?", "Half and whole."]
    assert page.page.get_by_role("region", name="Later turns").count() == 0
    assert question(page) == "A draft."
    assert "notes.txt" in page.find(".files .chip").inner_text()
    assert page.page.get_by_label("Instructions").input_value() == "Be brief."
    upstream.script("poet", reply(text("Last.")))
    ask(page, "Question 4?")
    page.find(".message[data-role=assistant] .md", "Last.")
    sent = [message["content"] for message in last_body(upstream, "poet")["messages"] if message["role"] == "user"]
    assert len(sent) == 4


def test_chat_in_a_conversation_shows_its_items_again_after_a_reload(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("poet", [reply(text("One.")), reply(text("Two."))])
    with Wire(page_stack) as wire:
        conversation = wire.http.post("/conversations", json={}).json()["id"]
        wire.create(model="local/poet", input="First?", conversation=conversation)
    page.goto(f"/ui/playground?conversation={conversation}")
    page.find(".message .md", "One.")
    choose(page, "local/poet")
    ask(page, "Second?")
    page.find(".message .md", "Two.")
    page.page.reload()
    page.find(".message .md", "Two.")
    assert page.page.locator(".message .content").all_inner_texts() == ["First?", "One.", "Second?", "Two."]


def test_escape_pressed_twice_for_the_answer_stops_it(page: BrowserPage, upstream: Upstream) -> None:
    upstream.script("poet", reply(text("One ", "two ", "three"), hold=2))
    page.goto("/ui/playground")
    choose(page, "local/poet")
    ask(page, "Count.")
    page.find(".growing .message", "One two")
    page.press("Escape", "Escape", "Escape")
    page.find(".talk", "Stopped.")
    upstream.wait_for("poet", ended=True)
    assert page.path == "/ui/playground"


def test_escape_closes_an_open_menu_and_stays_in_the_view(page: BrowserPage, page_stack: LiveStack) -> None:
    with Wire(page_stack) as wire:
        response_id = wire.create(model="local/fast-2", input="Hello?")["id"]
    page.goto("/ui")
    page.find(f".list-row[data-id={response_id}] a").click()
    page.find(".menu summary", "Copy as").click()
    page.find(".menu-list button", "Python")
    page.press("Escape")
    page.gone(".menu-list button", "Python")
    page.press("Escape", "Escape")
    page.find("h1", "Hello?")
    assert page.path == f"/ui/responses/{response_id}"


def test_foreground_answer_goes_on_in_another_view_and_a_reload_asks_first(
    browser: Browser, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("poet", reply(text("Half ", "and ", "whole."), hold=2))
    with browser.page(page_stack.base_url) as page:
        page.goto("/ui/playground")
        choose(page, "local/poet")
        page.find("summary", "Settings").click()
        page.page.get_by_label("In the background").uncheck()
        ask(page, "Count.")
        page.find(".growing .message", "Half and")
        page.find("#nav a", "Live").click()
        page.find(".live-row", "Count.")
        page.find("#nav a", "Playground").click()
        with page.page.expect_event("dialog") as asked:
            page.page.evaluate("() => setTimeout(() => location.reload())")
        assert asked.value.type == "beforeunload"
        upstream.release("poet")
        page.find(".message[data-role=assistant] .md", "Half and whole.")


def test_new_chat_is_empty_and_the_last_one_is_there_on_the_way_back(page: BrowserPage, upstream: Upstream) -> None:
    upstream.script("poet", reply(text("First.")))
    page.goto("/ui/playground")
    choose(page, "local/poet")
    ask(page, "Begin.")
    page.find(".message[data-role=assistant] .md", "First.")
    page.press("Escape", "n")
    page.find(".empty", "Ask a model")
    assert page.path == "/ui/playground"
    page.page.reload()
    page.find(".empty", "Ask a model")
    page.page.go_back()
    page.find(".message[data-role=assistant] .md", "First.")


@pytest.mark.parametrize(
    "options", [{"viewport": {"width": 1280, "height": 720}}, {"viewport": PHONE, "has_touch": True}]
)
def test_long_answer_is_followed_to_its_end_unless_the_reader_scrolls_up(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, options: dict[str, object]
) -> None:
    long = reply(text(*PARAGRAPHS[:20], *PARAGRAPHS[20:], "The very end."), hold=20)
    upstream.script("poet", [long, reply(text("A second answer."))])
    with browser.page(page_stack.base_url, **options) as page:
        page.goto("/ui/playground")
        choose(page, "local/poet")
        ask(page, "Write much.")
        page.until(END_IN_SIGHT, "Paragraph 19 of")
        page.page.mouse.move(300, 400)
        page.page.mouse.wheel(0, -900)
        page.find(".jump", "Jump to end")
        upstream.release("poet")
        page.find(".message[data-role=assistant] .md", "The very end.")
        assert page.page.evaluate(f"() => {LEFT}") > 400
        page.find(".jump", "Jump to end").click()
        page.until(END_IN_SIGHT, "The very end.")
        page.gone(".jump")
        page.page.mouse.wheel(0, -900)
        page.find(".jump", "Jump to end")
        ask(page, "And more?")
        page.until(END_IN_SIGHT, "A second answer.")
        page.check_quiet()


def test_stopped_turn_is_marked_as_outside_of_the_context(page: BrowserPage, upstream: Upstream) -> None:
    upstream.script(
        "poet", [reply(text("First.")), reply(text("One ", "two ", "three"), hold=2), reply(text("Third."))]
    )
    page.goto("/ui/playground")
    choose(page, "local/poet")
    ask(page, "Begin.")
    page.find(".message[data-role=assistant] .md", "First.")
    ask(page, "Count.")
    page.find(".growing .message", "One two")
    page.press("Escape", "x")
    page.find(".exchange[data-context=outside]", "Not part of the context")
    drawn = "() => [...document.querySelectorAll('.cursor')].map((one) => getComputedStyle(one, '::after').display)"
    assert "inline-block" not in page.page.evaluate(drawn)
    page.press("/")
    ask(page, "Go on.")
    page.find(".message[data-role=assistant] .md", "Third.")
    assert page.page.locator(".exchange[data-context=outside]").all_inner_texts()[0].startswith("User\n\nCount.")
    assert page.page.locator(".exchange[data-context=outside]").count() == 1
    sent = [message["content"] for message in last_body(upstream, "poet")["messages"]]
    assert sent == ["Begin.", "First.", "Go on."]
    assert page.axe() == []


def test_stopped_turns_stay_in_their_places_after_a_reload(page: BrowserPage, upstream: Upstream) -> None:
    first, third = reply(text("Half ", "and ", "more"), hold=2), reply(text("A third ", "and ", "more"), hold=2)
    upstream.script("poet", [first, reply(text("Two.")), third, reply(text("Whole."))])
    page.goto("/ui/playground")
    choose(page, "local/poet")
    for number, answer in enumerate(("Half and", "Two.", "A third and"), 1):
        ask(page, f"Question {number}?")
        page.find(".turns .message[data-role=assistant]", answer)
        if answer != "Two.":
            page.press("Escape", "x")
        page.until("count => document.querySelectorAll('.exchange .answered').length === count", number)
        page.page.reload()
        page.until("count => document.querySelectorAll('.exchange .answered').length === count", number)
        marked = [one.get_attribute("data-context") for one in page.page.locator(".exchange").all()]
        assert marked == ["outside", None, "outside"][:number]
        questions = page.page.locator(".turns .message[data-role=user] .content").all_inner_texts()
        assert questions == ["Question 1?", "Question 2?", "Question 3?"][:number]
    page.gone(".later")
    page.page.locator(".exchange").nth(2).get_by_role("button", name="Retry").click()
    page.find(".turns .message[data-role=assistant] .md", "Whole.")
    assert [message["content"] for message in last_body(upstream, "poet")["messages"]] == [
        *("Question 2?", "Two.", "Question 3?"),
    ]


def test_stopped_turn_of_a_conversation_is_marked_and_stays_after_a_reload(
    page: BrowserPage, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("poet", [reply(text("One.")), reply(text("Half ", "and ", "more"), hold=2)])
    with Wire(page_stack) as wire:
        conversation = wire.http.post("/conversations", json={}).json()["id"]
        wire.create(model="local/poet", input="First?", conversation=conversation)
    page.goto(f"/ui/playground?conversation={conversation}")
    page.find(".message .md", "One.")
    choose(page, "local/poet")
    ask(page, "Second?")
    page.find(".growing .message", "Half and")
    page.press("Escape", "x")
    page.find(".exchange[data-context=outside]", "Half and")
    page.page.reload()
    page.find(".exchange[data-context=outside]", "Half and")
    page.find(".message .md", "One.")
    assert page.page.locator(".message[data-role=user] .content").all_inner_texts() == ["First?", "Second?"]


def test_running_answer_that_cannot_be_read_at_a_reload_is_read_again(
    browser: Browser, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("poet", reply(text("Half ", "and ", "whole."), hold=2))
    with browser.page(page_stack.base_url) as page:
        page.goto("/ui/playground")
        choose(page, "local/poet")
        ask(page, "Count.")
        page.find(".growing .message", "Half and")
        page.page.route("**/v1/ui/responses/*", lambda route: route.fulfill(status=503, body=""))
        page.page.reload()
        page.find(".notice.bad", "The answer that ran could not be read: 503")
        page.page.unroute("**/v1/ui/responses/*")
        page.page.get_by_role("button", name="Try again").click()
        page.find(".growing .message", "Half and")
        page.gone(".notice.bad")
        upstream.release("poet")
        page.find(".message[data-role=assistant] .md", "Half and whole.")


def test_stop_that_did_not_arrive_is_repeated_when_the_server_answers_again(
    browser: Browser, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("poet", reply(text("Half ", "and ", "whole."), hold=2))
    unreachable = "**/v1/responses/*/cancel", "**/v1/responses/*stream=true*"
    with browser.page(page_stack.base_url) as page:
        page.goto("/ui/playground")
        choose(page, "local/poet")
        ask(page, "Count.")
        page.find(".growing .message", "Half and")
        for address in unreachable:
            page.page.route(address, lambda route: route.abort("connectionrefused"))
        page.page.reload()
        page.find(".exchange", "The server does not answer.")
        page.press("Escape", "x")
        page.find(".toast", "The server does not answer.")
        for address in unreachable:
            page.page.unroute(address)
        page.find(".exchange[data-context=outside]", "Stopped.")
        upstream.wait_for("poet", ended=True)


def test_answer_that_is_not_stored_is_marked_as_outside_of_the_context(page: BrowserPage, upstream: Upstream) -> None:
    upstream.script("poet", reply(text("Once.")))
    page.goto("/ui/playground")
    choose(page, "local/poet")
    page.find("summary", "Settings").click()
    page.page.get_by_role("checkbox", name="Store").uncheck()
    ask(page, "Begin.")
    page.find(".exchange[data-context=outside]", "Not stored, so not part of the context")
