"""A browser, and a stack with the built-in page and responses of every kind."""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.browser import Browser, BrowserPage
from tests.support.mcp_server import McpServers
from tests.support.showcase import Showcase, make_showcase
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import UpstreamProcess
from tests.support.variants import open_this_machine, responses_config, variant
from tests.support.web import Web
from tests.support.wire import Wire


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep tests on one host: the page and its routes are this package's. Those that cross `host/` have `both_hosts`."""
    if item.get_closest_marker("both_hosts") is None:
        item.add_marker("one_host")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A browser of this folder: playwright's event loop must not outlive it, for other tests have their own."""
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def page_stack(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    internet: Web,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveStack]:
    """A stack of the starter template whose page shows recorded chat requests and usage.

    It has a web search and an image server, and no containers.
    """

    def change(config: dict[str, Any]) -> None:
        open_this_machine(config)
        responses_config(config)["ui"] = {"record_requests": True}
        prices = [{"match": "*", "input": 1.0, "output": 3.0}]
        responses_config(config).update(batches={"retry_seconds": 0.01}, webhooks={"allow_http": True})
        responses_config(config)["usage"] = {"metadata_key": "team", "prices": prices}

    folder = tmp_path_factory.mktemp("page")
    env = {
        **stack_env,
        "INFERENCE_URL": upstream_process.client.base_url,
        "SEARXNG_URL": "http://127.0.0.1:9",
        "IMAGE_URL": internet.url("/images/v1"),
    }
    with LiveStack(variant(STARTER, folder / "config.yaml", change), env, folder / "state", host=host) as live:
        yield live


@pytest.fixture(scope="session")
def showcase(page_stack: LiveStack, upstream_process: UpstreamProcess, mcp: McpServers) -> Showcase:
    """Responses of every kind, stored in the page's stack."""
    with Wire(page_stack) as wire:
        return make_showcase(wire, upstream_process.client, mcp)


@pytest.fixture
def own_model() -> str:
    """A model that no other test asks, for lists of what one test has made: all files of a process share the stack."""
    return f"own-{secrets.token_hex(4)}"


@pytest.fixture
def page(browser: Browser, page_stack: LiveStack) -> Iterator[BrowserPage]:
    """A new page; the test fails if a script fails, the policy refuses something, or another host gets a request."""
    with browser.page(page_stack.base_url) as page:
        yield page
        page.check_quiet()
