"""Pages of other sites in a real browser: none of them runs a response or reads anything."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pytest
from playwright.sync_api import Page

from tests.integration.browser.test_page_playground import ask, choose
from tests.support.browser import EVIL, Browser
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.waiting import wait_until
from tests.support.web import Answer, ReceivedRequest, Web
from tests.support.wire import Wire

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

MODEL: Final = "victim"

POST: Final = """async ([url, body, type]) => {
  const sent = type === null ? new Blob([body]) : body;
  await fetch(url, {method: "POST", mode: "no-cors", headers: type ? {"content-type": type} : {}, body: sent});
}"""
FORM: Final = """([url, body]) => {
  const form = document.createElement("form");
  form.method = "POST"; form.action = url; form.enctype = "text/plain";
  const field = document.createElement("input");
  [field.name, field.value] = [body.slice(0, -1) + ', "metadata": {"x": "', '"}}'];
  form.append(field); document.body.append(form); form.submit();
}"""
UPLOAD: Final = """async ([url, body]) => {
  const form = new FormData();
  form.append("purpose", "assistants"); form.append("file", new File([body], "x.txt"));
  await fetch(url, {method: "POST", mode: "no-cors", body: form});
}"""
BEACON: Final = "([url, body]) => { navigator.sendBeacon(url, body); }"
SANDBOX: Final = """([url, body]) => {
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts";
  frame.srcdoc = `<script>fetch(${JSON.stringify(url)}, {method: "POST", mode: "no-cors", body: ${
    JSON.stringify(body)}})</script>`;
  document.body.append(frame);
}"""
ELEMENT: Final = """([url, name]) => {
  const element = document.createElement(name);
  if (name === "link") { element.rel = "stylesheet"; element.href = url; } else { element.src = url; }
  document.body.append(element);
}"""
READ: Final = "async ([url, mode]) => { await fetch(url, {mode}).catch(() => {}); }"
SOCKET: Final = """([url]) => new Promise((ended) => {
  const socket = new WebSocket(url);
  socket.onopen = () => ended("open");
  socket.onerror = () => ended("refused");
})"""
SAME_ORIGIN: Final = """async ([method, path, body]) => {
  const answer = await fetch(path, {method, body, headers: body ? {"content-type": "application/json"} : {}});
  return [answer.status, await answer.text()];
}"""


@dataclass(frozen=True)
class ForeignPage:
    """A page of another site.

    Attributes:
        page: it, in the browser.
        stack: the server that it attacks.
    """

    page: Page
    stack: LiveStack

    def status_of(self, script: str, path: str, *arguments: Any) -> str:
        """Run an attack and return the status with which the server answers its request, as in the server's log.

        The browser hides answers that the page may not see from its tools as well.
        """
        asked = f"{path}?{uuid4()}"
        self.page.evaluate(script, [self.stack.base_url + asked, *arguments])
        line = re.compile(rf'{re.escape(asked)} HTTP/1.1" ([0-9]+)')
        wait_until(lambda: bool(line.search(self.stack.log.read_text())))
        [status] = line.findall(self.stack.log.read_text())
        return str(status)


@pytest.fixture(params=["cross-site", "same-site"])
def foreign(
    request: pytest.FixtureRequest, browser: Browser, page_stack: LiveStack, internet: Web
) -> Iterator[ForeignPage]:
    """A page of another site, and one of another server on the same machine."""
    internet.say("/attack", "<title>Kittens</title><p>Kittens")
    host = EVIL if request.param == "cross-site" else "127.0.0.1"
    with browser.page(internet.url("", host)) as page:
        page.page.goto(page.root + "/attack")
        yield ForeignPage(page.page, page_stack)


@pytest.fixture
def victim(page_stack: LiveStack, upstream: Upstream) -> Iterator[Wire]:
    """The server's user, of whose model and store no attack may have an effect."""
    upstream.script(MODEL, reply(text("Done.")))
    with Wire(page_stack) as wire:
        before = [each["id"] for each in wire.listed(limit=100)]
        yield wire
        assert not upstream.requests(MODEL)
        assert [each["id"] for each in wire.listed(limit=100)] == before


@pytest.mark.usefixtures("victim")
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/conversations", "/v1/chat/completions"])
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_post_of_foreign_page_is_refused(foreign: ForeignPage, path: str, kind: str | None) -> None:
    """The third kind is a Blob without a type, which is sent without a content type."""
    body = '{"model": "local/victim", "input": "x", "messages": [{"role": "user", "content": "x"}]}'
    assert foreign.status_of(POST, path, body, kind) == "403"


@pytest.mark.usefixtures("victim")
@pytest.mark.parametrize("script", [FORM, BEACON, SANDBOX], ids=["form", "beacon", "sandboxed frame"])
def test_other_way_to_post_is_refused(foreign: ForeignPage, script: str) -> None:
    assert foreign.status_of(script, "/v1/responses", '{"model": "local/victim", "input": "x"}') == "403"


@pytest.mark.usefixtures("victim")
def test_post_that_the_foreign_server_redirects_is_refused(foreign: ForeignPage, internet: Web) -> None:
    """The browser sends it again, with its body."""

    def redirect(request: ReceivedRequest) -> Answer:
        return Answer(status=307, headers={"location": request.query["to"]})

    internet.answers["/redirect"] = redirect
    script = """async ([url, body]) => {
      await fetch("/redirect?to=" + encodeURIComponent(url), {method: "POST", mode: "no-cors", body});
    }"""
    assert foreign.status_of(script, "/v1/responses", '{"model": "local/victim", "input": "x"}') == "403"


@pytest.mark.parametrize("path", ["/v1/files", "/v1/skills"])
def test_upload_of_foreign_page_is_refused(foreign: ForeignPage, path: str) -> None:
    """A form with a file is sent without asking the server first."""
    assert foreign.status_of(UPLOAD, path, "x") == "403"


@pytest.mark.usefixtures("victim")
def test_json_of_foreign_page_is_not_sent_past_its_preflight(foreign: ForeignPage) -> None:
    script = """async ([url, body]) => {
      const headers = {"content-type": "application/json"};
      return fetch(url, {method: "POST", headers, body}).then(() => "sent", () => "not sent");
    }"""
    sent = foreign.page.evaluate(script, [foreign.stack.base_url + "/v1/responses", '{"model": "local/victim"}'])
    assert sent == "not sent"


@pytest.mark.parametrize("name", ["img", "script", "link", "iframe"])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/models", "/ui"])
def test_element_of_foreign_page_loads_nothing(foreign: ForeignPage, name: str, path: str) -> None:
    assert foreign.status_of(ELEMENT, path, name) == "403"


@pytest.mark.parametrize("mode", ["cors", "no-cors"])
def test_foreign_page_reads_nothing(foreign: ForeignPage, mode: str) -> None:
    assert foreign.status_of(READ, "/v1/responses", mode) == "403"


def test_websocket_of_foreign_page_is_refused(foreign: ForeignPage) -> None:
    url = foreign.stack.base_url.replace("http", "ws", 1) + "/v1/responses"
    assert foreign.page.evaluate(SOCKET, [url]) == "refused"


def test_link_of_foreign_page_opens_the_built_in_page(foreign: ForeignPage) -> None:
    page = foreign.page
    page.evaluate(
        "url => { const link = document.createElement('a'); link.href = url; link.textContent = 'Open';"
        " document.body.append(link) }",
        foreign.stack.base_url + "/ui",
    )
    page.locator("a", has_text="Open").click()
    page.locator("main h1").first.wait_for()


@pytest.mark.usefixtures("victim")
def test_page_whose_name_was_rebound_reads_and_runs_nothing(browser: Browser, page_stack: LiveStack) -> None:
    """For the browser, it is of one origin with the server."""
    with browser.page(f"http://{EVIL}:{page_stack.port}") as page:
        opened = page.page.goto(page.root + "/ui")
        assert opened is not None
        assert opened.status == 403
        for method, path, body in (
            ("GET", "/v1/responses", None),
            ("GET", "/v1/ui/responses", None),
            ("GET", "/v1/models", None),
            ("DELETE", "/v1/responses/resp_1", None),
            ("POST", "/v1/responses", '{"model": "local/victim", "input": "x"}'),
            ("POST", "/v1/chat/completions", "{}"),
        ):
            status, answer = page.page.evaluate(SAME_ORIGIN, [method, path, body])
            assert (status, "'allowed_hosts'" in answer) == (403, True), path
        url = f"ws://{EVIL}:{page_stack.port}/v1/responses"
        assert page.page.evaluate(SOCKET, [url]) == "refused"


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_built_in_page_works_under_both_names_of_the_machine(
    browser: Browser, page_stack: LiveStack, upstream: Upstream, name: str
) -> None:
    upstream.script("poet", reply(text("Salt on stone.")))
    with browser.page(f"http://{name}:{page_stack.port}") as page:
        page.goto("/ui/playground")
        choose(page, "local/poet")
        ask(page, "Write one line.")
        page.find(".message[data-role=assistant]", "Salt on stone.")
        assert page.page.evaluate(SOCKET, [page.root.replace("http", "ws", 1) + "/v1/responses"]) == "open"
        page.check_quiet()
