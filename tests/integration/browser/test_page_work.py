"""The views of batches and webhooks, which their features bring to the page, and the card of what waits."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest

from tests.support.browser import Browser
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.waiting import wait_until
from tests.support.web import Answer, Web

pytestmark = pytest.mark.live

PHONE: Any = {"width": 360, "height": 740}


@pytest.fixture
def client(page_stack: LiveStack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{page_stack.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def create(client: openai.OpenAI, *models: str) -> str:
    """Create a batch with a line for each model."""
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/responses",
            "body": {"model": model, "input": "Hi"},
        }
        for number, model in enumerate(models)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file_id = client.files.create(file=("lines.jsonl", io.BytesIO(content)), purpose="batch").id
    return client.batches.create(
        input_file_id=file_id, endpoint="/v1/responses", completion_window="24h", metadata={"job": "nightly"}
    ).id


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_batch_is_shown_with_its_progress_its_failed_lines_and_cancelled(
    browser: Browser, page_stack: LiveStack, client: openai.OpenAI, upstream: Upstream, theme: Literal["light", "dark"]
) -> None:
    held = f"held-{theme}"
    upstream.script(held, reply(text("a", "b"), hold=1))
    batch_id = create(client, "local/echo", "nobody/here", *[f"local/{held}"] * 2)
    with browser.page(page_stack.base_url, color_scheme=theme) as page:
        page.goto("/ui")
        page.find("#nav a", "Batches")
        page.press("g", "b")
        batch = f".batch[data-id={batch_id}]"
        page.find(f"{batch} .batch-counts", "1 completed, 1 failed, of 4 lines")
        page.find(f"{batch} .status", "Running")
        page.find(f"{batch} .batch-about", "job: nightly")
        assert page.page.locator(f"{batch} progress").evaluate("(bar) => [bar.value, bar.max]") == [2, 4]
        page.page.set_viewport_size(PHONE)
        assert page.fits()
        page.find(f"{batch} button", "Cancel").click()
        page.find(f"{batch} .status", "Cancelled")
        page.find(f"{batch} .batch-counts", "1 completed, 3 failed, of 4 lines")
        page.find(f"{batch} button", "Failed lines").click()
        rows = page.page.locator("dialog .batch-table tbody tr")
        rows.first.wait_for()
        assert [row.locator("th").inner_text() for row in rows.all()] == ["line-1", "line-2", "line-3"]
        assert rows.first.locator("td").first.inner_text() == "404"
        assert page.axe() == []
        page.press("Escape")
        with page.page.expect_download() as saved:
            page.find(f"{batch} button", "Output").click()
        assert saved.value.suggested_filename == f"{batch_id}_output.jsonl"
        assert page.fits()
        page.check_quiet()


def test_file_that_cannot_be_used_is_shown_with_its_lines(
    browser: Browser, page_stack: LiveStack, client: openai.OpenAI
) -> None:
    batch_id = create(client, "local/echo", "")
    with browser.page(page_stack.base_url) as page:
        page.goto("/ui/batches")
        batch = f".batch[data-id={batch_id}]"
        page.find(f"{batch} .status", "Failed")
        row = page.find(f"{batch} .batch-table tbody tr", "missing_required_parameter")
        assert row.locator("th").inner_text() == "2"
        page.check_quiet()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_deliveries_of_a_webhook_are_shown_and_sent_again(
    browser: Browser, page_stack: LiveStack, client: openai.OpenAI, theme: Literal["light", "dark"]
) -> None:
    with Web() as web, browser.page(page_stack.base_url, color_scheme=theme) as page:
        web.answer_all = lambda _: Answer(b"Thank you")
        types: Any = ["response.completed"]
        endpoint = client.webhooks.create(name=f"Jobs {theme}", url=web.url("/hook"), event_types=types)
        created = client.responses.create(model="local/echo", input="Hi", background=True)
        wait_until(lambda: len(web.seen) == 1)
        page.goto("/ui")
        page.find("#nav a", "Webhooks")
        page.press("g", "w")
        one = f".endpoint[data-id={endpoint.id}]"
        page.find(f"{one} summary", f"Jobs {theme}").click()
        row = page.find(f"{one} tbody tr", created.id)
        page.find(f"{one} tbody .status", "Delivered")
        assert "200 Thank you" in row.inner_text()
        assert page.axe() == []
        page.page.set_viewport_size(PHONE)
        assert page.fits()
        row.locator("button").click()
        wait_until(lambda: len(web.seen) == 2)
        page.find(f"{one} tbody td", "2")
        client.webhooks.delete(endpoint.id)
        page.check_quiet()
    assert {each.headers["webhook-id"] for each in web.seen} == {web.seen[0].headers["webhook-id"]}
