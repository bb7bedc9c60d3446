"""Files of messages in the playground: dropped, pasted and chosen; uploaded, refused, removed and sent."""

import json
from base64 import b64encode
from typing import Final

import pytest
from playwright.sync_api import Route

from tests.integration.browser.test_page_playground import ask, choose, last_body
from tests.support.browser import Browser, BrowserPage
from tests.support.image_server import data_url, png
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text

pytestmark = pytest.mark.live

GIVE: Final = """([how, name, type, content]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([Uint8Array.from(atob(content), (one) => one.charCodeAt(0))], name, { type }));
  const at = document.querySelector(how === 'paste' ? 'textarea[name=input]' : '.talk');
  const options = { bubbles: true, cancelable: true };
  if (how === 'paste') at.dispatchEvent(new ClipboardEvent('paste', { ...options, clipboardData: transfer }));
  else for (const kind of ['dragover', 'drop']) at.dispatchEvent(new DragEvent(kind, { ...options, dataTransfer: transfer }));
}"""


def give(page: BrowserPage, how: str, name: str, media_type: str, content: bytes) -> None:
    """Drop or paste a file."""
    page.page.evaluate(GIVE, [how, name, media_type, b64encode(content).decode()])


def opened(page: BrowserPage) -> None:
    """Open the playground, with a scripted model."""
    page.goto("/ui/playground")
    choose(page, "local/poet")
    page.find(".file-limits", "Images up to 33.6 MB, other files up to 67.1 MB")


def uploads(page: BrowserPage) -> list[str]:
    """Return the requests to the Files API."""
    return [one for one in page.requests if "/v1/files" in one]


@pytest.mark.both_hosts
def test_dropped_file_is_uploaded_and_a_pasted_image_is_in_the_request(page: BrowserPage, upstream: Upstream) -> None:
    upstream.script("poet", reply(text("Seen.")))
    opened(page)
    give(page, "drop", "no<b>tes.txt", "text/plain", b"the word is heron")
    give(page, "paste", "dot.png", "image/png", png(1))
    page.find(".files .chip", "no<b>tes.txt")
    page.gone(".files progress")
    assert page.axe() == []
    page.page.reload()
    page.find(".files .chip", "dot.png")
    ask(page, "What is the word?")
    page.find(".message[data-role=assistant] .md", "Seen.")
    assert uploads(page) == ["POST /v1/files"]
    sent = json.dumps(last_body(upstream, "poet")["messages"])
    assert "the word is heron" in sent
    assert data_url(png(1)) in sent
    page.find(".exchange .chip", "no<b>tes.txt")
    assert page.page.locator(".files .chip").count() == 0


def test_file_that_is_removed_is_deleted_and_not_sent(page: BrowserPage, upstream: Upstream) -> None:
    upstream.script("poet", reply(text("Nothing.")))
    opened(page)
    give(page, "drop", "notes.txt", "text/plain", b"the word is heron")
    page.find(".files .chip", "notes.txt")
    page.gone(".files progress")
    page.page.get_by_role("button", name="Remove notes.txt").click()
    page.gone(".files .chip")
    ask(page, "What is the word?")
    page.find(".message[data-role=assistant] .md", "Nothing.")
    assert "heron" not in json.dumps(last_body(upstream, "poet")["messages"])
    assert [one.split("/file-")[0] for one in uploads(page)] == ["POST /v1/files", "DELETE /v1/files"]


def test_empty_file_is_named_and_not_attached(page: BrowserPage) -> None:
    opened(page)
    give(page, "drop", "nothing.txt", "text/plain", b"")
    page.find(".toast", "nothing.txt is empty, so it is not attached.")
    assert page.page.locator(".files .chip").count() == 0
    assert uploads(page) == []


def sent_before_its_file_arrives(page: BrowserPage) -> list[Route]:
    """Send a message whose file is still on its way; return the requests that upload it, which are held back."""
    held: list[Route] = []
    opened(page)
    page.page.route("**/v1/files", lambda route: held.append(route))  # noqa: PLW0108 - playwright sets an attribute of it
    give(page, "drop", "notes.txt", "text/plain", b"the word is heron")
    page.find(".files .chip progress")
    ask(page, "What is the word?")
    page.find(".toast", "It is sent when its files have arrived")
    return held


def test_upload_shows_its_progress_and_can_be_given_up(browser: Browser, page_stack: LiveStack) -> None:
    with browser.page(page_stack.base_url) as page:
        held = sent_before_its_file_arrives(page)
        page.page.get_by_role("button", name="Remove notes.txt").click()
        page.gone(".files .chip")
        assert page.page.locator("textarea[name=input]").input_value() == "What is the word?"
        for route in held:
            route.abort()
        page.page.wait_for_timeout(300)
        assert not [one for one in page.requests if one == "POST /v1/responses"]


def test_message_is_sent_when_its_file_has_arrived(browser: Browser, page_stack: LiveStack, upstream: Upstream) -> None:
    upstream.script("poet", reply(text("Seen.")))
    with browser.page(page_stack.base_url) as page:
        [upload] = sent_before_its_file_arrives(page)
        upload.continue_()
        page.find(".message[data-role=assistant] .md", "Seen.")
        assert "the word is heron" in json.dumps(last_body(upstream, "poet")["messages"])
        page.check_quiet()


def test_file_that_is_too_large_is_named_before_it_is_uploaded(browser: Browser, page_stack: LiveStack) -> None:
    def small(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"limits": {"image_bytes": 10, "file_bytes": 20}})

    with browser.page(page_stack.base_url) as page:
        page.page.route("**/v1/ui/session", small)
        page.goto("/ui/playground")
        page.find(".file-limits", "Images up to 10 B, other files up to 20 B")
        give(page, "drop", "<b>.txt", "text/plain", b"x" * 21)
        page.find(".toast", "<b>.txt has 21 B. A file may have 20 B at most.")
        give(page, "paste", "dot.png", "image/png", png(1))
        page.find(".toast", "An image may have 10 B at most.")
        assert page.page.locator(".files .chip").count() == 0
        assert uploads(page) == []
        page.check_quiet()


def test_file_goes_into_the_request_where_the_server_keeps_none(
    browser: Browser, page_stack: LiveStack, upstream: Upstream
) -> None:
    upstream.script("poet", reply(text("Seen.")))
    with browser.page(page_stack.base_url) as page:
        opened(page)
        page.page.route("**/v1/files", lambda route: route.fulfill(status=404, json={"detail": "Not Found"}))
        give(page, "drop", "notes.txt", "text/plain", b"the word is heron")
        page.find(".files .chip", "notes.txt")
        page.gone(".files progress")
        ask(page, "What is the word?")
        page.find(".message[data-role=assistant] .md", "Seen.")
        assert "the word is heron" in json.dumps(last_body(upstream, "poet")["messages"])
