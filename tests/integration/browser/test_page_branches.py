"""Branches of the playground's chats: edited questions, answers again, and the way back to the earlier ones."""

from typing import Final

import pytest

from tests.integration.browser.test_page_playground import PHONE, ask, choose, last_body
from tests.support.browser import Browser, BrowserPage
from tests.support.image_server import data_url, png
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.wire import Wire

pytestmark = pytest.mark.live

SWITCH: Final = ".branches"


def shown(page: BrowserPage) -> list[str]:
    """Return the texts of the messages of the chat."""
    return page.page.locator(".turns .message .content").all_inner_texts()


def context(upstream: Upstream, model: str = "poet") -> list[str]:
    """Return the texts that the model got last."""
    return [message["content"] for message in last_body(upstream, model)["messages"]]


def answered(page: BrowserPage, words: str) -> None:
    """Wait for an answer as the server has rendered it."""
    page.find(".turns .message[data-role=assistant] .md", words)


def begun(page: BrowserPage, upstream: Upstream, *answers: str) -> None:
    """Ask as many questions as there are answers: Question 1?, Question 2?, ..."""
    upstream.script("poet", [reply(text(answer)) for answer in answers])
    page.goto("/ui/playground")
    choose(page, "local/poet")
    for number, answer in enumerate(answers, 1):
        ask(page, f"Question {number}?")
        answered(page, answer)


def action(page: BrowserPage, turn: int, name: str) -> None:
    """Press a button of a turn."""
    page.page.locator(".turns .exchange").nth(turn).get_by_role("button", name=name).click()


def test_edited_question_begins_a_branch_and_the_earlier_one_stays_reachable(
    page: BrowserPage, upstream: Upstream
) -> None:
    begun(page, upstream, "One.", "Two.", "Three.")
    page.page.locator("textarea[name=input]").fill("A draft.")
    action(page, 1, "Edit")
    page.find(".editing", "You edit an earlier question")
    field = page.page.locator("textarea[name=input]")
    assert field.input_value() == "Question 2?"
    field.fill("Question 2 in other words?")
    page.page.reload()
    page.find(".editing", "You edit an earlier question")
    assert field.input_value() == "Question 2 in other words?"
    upstream.script("poet", [reply(text("Two again."))])
    page.press("/", "Enter")
    answered(page, "Two again.")
    assert shown(page) == ["Question 1?", "One.", "Question 2 in other words?", "Two again."]
    assert context(upstream) == ["Question 1?", "One.", "Question 2 in other words?"]
    assert field.input_value() == "A draft."
    assert page.find(SWITCH).inner_text() == "2 of 2"
    page.page.reload()
    page.find(SWITCH, "2 of 2")
    assert shown(page) == ["Question 1?", "One.", "Question 2 in other words?", "Two again."]
    page.page.get_by_role("button", name="Earlier branch").click()
    answered(page, "Three.")
    page.find(SWITCH, "1 of 2")
    assert shown(page) == ["Question 1?", "One.", "Question 2?", "Two.", "Question 3?", "Three."]
    upstream.script("poet", [reply(text("Four."))])
    ask(page, "Question 4?")
    answered(page, "Four.")
    assert context(upstream) == ["Question 1?", "One.", "Question 2?", "Two.", "Question 3?", "Three.", "Question 4?"]
    assert page.axe() == []


def test_cancelled_edit_leaves_the_draft_and_the_chat(page: BrowserPage, upstream: Upstream) -> None:
    begun(page, upstream, "One.")
    page.page.locator("textarea[name=input]").fill("A draft.")
    action(page, 0, "Edit")
    page.page.locator("textarea[name=input]").fill("Something else")
    page.page.get_by_role("button", name="Cancel").click()
    assert page.page.locator("textarea[name=input]").input_value() == "A draft."
    assert shown(page) == ["Question 1?", "One."]


def test_draft_and_edit_stay_when_an_answer_ends_meanwhile(page: BrowserPage, upstream: Upstream) -> None:
    begun(page, upstream, "One.")
    upstream.script("poet", [reply(text("Half ", "and ", "whole."), hold=2)])
    ask(page, "Question 2?")
    page.find(".growing .message", "Half and")
    field = page.page.locator("textarea[name=input]")
    field.fill("A draft.")
    action(page, 0, "Edit")
    field.fill("Something else")
    upstream.release("poet")
    answered(page, "Half and whole.")
    assert field.input_value() == "Something else"
    page.page.get_by_role("button", name="Cancel").click()
    assert field.input_value() == "A draft."


def test_answer_is_made_again_with_other_settings_beside_the_first(page: BrowserPage, upstream: Upstream) -> None:
    begun(page, upstream, "One.", "Two.")
    page.page.get_by_label("Instructions").fill("Be brief.")
    upstream.script("poet", [reply(text("Brief."))])
    page.press("Escape", "r")
    answered(page, "Brief.")
    assert shown(page) == ["Question 1?", "One.", "Question 2?", "Brief."]
    assert context(upstream) == ["Be brief.", "Question 1?", "One.", "Question 2?"]
    page.find(SWITCH, "2 of 2")
    page.page.get_by_role("button", name="Earlier branch").click()
    page.find(SWITCH, "1 of 2")
    assert shown(page) == ["Question 1?", "One.", "Question 2?", "Two."]
    assert page.page.get_by_label("Instructions").input_value() == "Be brief."


def test_first_question_has_branches_too_after_a_reload(page: BrowserPage, upstream: Upstream) -> None:
    begun(page, upstream, "One.")
    upstream.script("poet", [reply(text("Another one."))])
    action(page, 0, "Regenerate")
    answered(page, "Another one.")
    page.find(SWITCH, "2 of 2")
    assert context(upstream) == ["Question 1?"]
    page.page.reload()
    page.find(SWITCH, "2 of 2")
    page.page.get_by_role("button", name="Earlier branch").click()
    page.find(SWITCH, "1 of 2")
    assert shown(page) == ["Question 1?", "One."]


def test_stopped_turn_is_tried_again_and_stays_as_a_branch(page: BrowserPage, upstream: Upstream) -> None:
    begun(page, upstream, "One.")
    upstream.script("poet", [reply(text("Half ", "and ", "more"), hold=2), reply(text("Whole."))])
    ask(page, "Question 2?")
    page.find(".growing .message", "Half and")
    page.press("Escape", "x")
    page.find(".exchange[data-context=outside]")
    action(page, 1, "Retry")
    answered(page, "Whole.")
    assert shown(page) == ["Question 1?", "One.", "Question 2?", "Whole."]
    assert context(upstream) == ["Question 1?", "One.", "Question 2?"]
    page.find(SWITCH, "2 of 2")
    page.page.get_by_role("button", name="Earlier branch").click()
    page.find(".exchange[data-context=outside]", "Half and")
    upstream.script("poet", [reply(text("Third."))])
    ask(page, "Question 3?")
    answered(page, "Third.")
    assert context(upstream) == ["Question 1?", "One.", "Question 3?"]


def test_request_that_did_not_arrive_is_tried_again(
    browser: Browser, page_stack: LiveStack, upstream: Upstream
) -> None:
    with browser.page(page_stack.base_url) as page:
        begun(page, upstream, "One.")
        page.page.route("**/v1/responses", lambda route: route.abort("connectionrefused"))
        ask(page, "Question 2?")
        page.find(".notice.bad", "The server does not answer.")
        page.page.unroute("**/v1/responses")
        upstream.script("poet", [reply(text("Two."))])
        action(page, 1, "Retry")
        answered(page, "Two.")
        assert shown(page) == ["Question 1?", "One.", "Question 2?", "Two."]


@pytest.mark.parametrize("name", ["Regenerate", "Edit"])
def test_refused_or_unreachable_request_for_another_answer_leaves_the_chat(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, name: str
) -> None:
    chat = ["Question 1?", "One.", "Question 2?", "Two."]
    with browser.page(page_stack.base_url) as page:
        begun(page, upstream, "One.", "Two.")
        page.press("Escape", "s")
        page.page.locator("input[name=temperature]").fill("9")
        action(page, 0, name)
        if name == "Edit":
            page.page.locator("textarea[name=input]").fill("In other words?")
            page.page.locator("textarea[name=input]").press("Enter")
        page.find(".exchange:first-child .notice.bad", "temperature")
        page.page.locator("input[name=temperature]").fill("")
        page.page.route("**/v1/responses", lambda route: route.abort("connectionrefused"))
        if name == "Edit":
            assert page.page.locator("textarea[name=input]").input_value() == "In other words?"
            page.page.locator("textarea[name=input]").press("Enter")
        else:
            action(page, 0, name)
        page.find(".exchange:first-child .notice.bad", "The server does not answer.")
        assert shown(page) == chat
        page.page.unroute("**/v1/responses")
        upstream.script("poet", [reply(text("Another one."))])
        page.page.reload()
        answered(page, "Two.")
        assert shown(page) == chat
        if name == "Edit":
            page.page.locator("textarea[name=input]").press("Enter")
        else:
            action(page, 0, name)
        answered(page, "Another one.")
        page.find(SWITCH, "2 of 2")
        page.page.get_by_role("button", name="Earlier branch").click()
        answered(page, "Two.")
        assert shown(page) == chat


def test_chat_that_begins_at_an_earlier_turn_names_the_later_ones(page: BrowserPage, upstream: Upstream) -> None:
    begun(page, upstream, "One.", "Two.")
    page.page.locator(".turns .exchange").first.get_by_role("link", name="Branch").click()
    page.find(".later", "Question 2?")
    assert shown(page) == ["Question 1?", "One."]
    upstream.script("poet", [reply(text("Aside."))])
    ask(page, "And aside?")
    answered(page, "Aside.")
    page.find(SWITCH, "2 of 2")
    page.gone(".later")
    assert context(upstream) == ["Question 1?", "One.", "And aside?"]


def test_question_with_an_image_is_edited_with_it(page: BrowserPage, page_stack: LiveStack, upstream: Upstream) -> None:
    upstream.script("poet", [reply(text("A dot.")), reply(text("Black."))])
    content = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": data_url(png(1))}]
    with Wire(page_stack) as wire:
        first = wire.create(model="local/poet", input=[{"role": "user", "content": content}])["id"]
    page.goto(f"/ui/playground?from={first}")
    answered(page, "A dot.")
    action(page, 0, "Edit")
    page.find(".files .chip", "Image")
    page.page.locator("textarea[name=input]").fill("What colour has it?")
    page.press("Enter")
    answered(page, "Black.")
    [message] = last_body(upstream, "poet")["messages"]
    assert [part["type"] for part in message["content"]] == ["text", "image_url"]
    assert message["content"][0]["text"] == "What colour has it?"


def test_actions_of_a_turn_fit_a_phone(browser: Browser, page_stack: LiveStack, upstream: Upstream) -> None:
    with browser.page(page_stack.base_url, viewport=PHONE, has_touch=True) as page:
        begun(page, upstream, "One.", "Two.")
        upstream.script("poet", [reply(text("Two again."))])
        action(page, 1, "Regenerate")
        answered(page, "Two again.")
        page.find(SWITCH, "2 of 2")
        assert page.fits()
        assert page.axe() == []
        page.check_quiet()
