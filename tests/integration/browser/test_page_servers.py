"""Two servers of one store: the page of one shows what the other makes."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from tests.support.browser import Browser
from tests.support.reader import Reader
from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.stores import SERVERS
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.variants import responses_config, variant
from tests.support.wire import Wire

# Servers share a store and its notifications, which do not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.one_host]

KINDS: Final = ["redis", *(pytest.param(each, marks=pytest.mark.extended) for each in ("sqlite", "postgres"))]
"""`tests/contract` has the notifications of each store."""
SECRET: Final = "c2VjcmV0IG9mIHR3byBzZXJ2ZXJzLCAzMiBieXRlcyE="
LONG: Final = "word " * 1000


@pytest.fixture(scope="module", params=KINDS)
def two(
    request: pytest.FixtureRequest,
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[LiveStack, LiveStack]]:
    """Two stacks of one store."""
    folder = tmp_path_factory.mktemp(f"two-{request.param}")
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url, "RESPONSES_SECRET": SECRET}
    with ExitStack() as running:
        if request.param == "sqlite":

            def share(config: dict[str, Any]) -> None:
                responses_config(config)["store"]["path"] = str(folder / "shared.db")

            config = variant(STARTER, folder / "config.yaml", share)
        else:
            config = REPOSITORY / "templates" / request.param / "config.yaml"
            env |= running.enter_context(SERVERS[request.param](folder / "database")).environment
        stacks = [LiveStack(config, env, folder / name, host=host) for name in ("one", "other")]
        for stack in stacks:
            running.enter_context(stack)
        yield stacks[0], stacks[1]


def test_response_of_the_other_server_appears_in_the_list_by_itself(
    browser: Browser, two: tuple[LiveStack, LiveStack], upstream: Upstream
) -> None:
    one, other = two
    upstream.script("m", reply(text("Hello.")))
    with browser.page(one.base_url) as page, Wire(other) as wire:
        page.goto("/ui")
        page.find(".connection[data-state=on]")
        response_id = wire.create(model="local/m", input="Made elsewhere.")["id"]
        page.find(f".list-row[data-id={response_id}]", "Made elsewhere.")
        wire.http.delete(f"/responses/{response_id}")
        page.gone(f".list-row[data-id={response_id}]")
        page.check_quiet()


def test_lease_of_a_killed_server_decides_what_the_other_server_shows(
    browser: Browser, two: tuple[LiveStack, LiveStack], upstream: Upstream
) -> None:
    one, other = two
    upstream.script("held", [reply(text("First line. ", "The last words."), hold=1)])
    with browser.page(one.base_url) as page, Wire(other) as wire, ExitStack() as after:
        after.callback(other.start)
        with Reader.create(wire, model="local/held", input="Slowly.") as reader:
            reader.read_to("First line. ")
            page.goto(f"/ui/responses/{reader.response_id}")
            page.find("h1", "Slowly.")
            page.find("[role=note]", "It runs on the server")
            other.kill()
            reader.read_to_death()
        page.find(".head .status:is([data-status=stalled], [data-status=failed])")
        page.find(".head .status[data-status=failed]")
        page.find("h1", "Slowly.")
        page.check_quiet()


def test_foreground_response_of_the_other_server_grows_on_its_page(
    browser: Browser, two: tuple[LiveStack, LiveStack], upstream: Upstream
) -> None:
    one, other = two
    upstream.script("held", reply(text("First line. ", LONG, "The last words."), hold=2))
    with browser.page(one.base_url) as page, Wire(other) as wire:
        with Reader.create(wire, model="local/held", input="Slowly.") as reader:
            reader.read_to("First line. ")
            page.goto("/ui/live")
            page.find(f".live-row[data-id={reader.response_id}]", "word word").locator("h3 a").click()
            shown = page.find(".growing .message", "First line. word word")
            assert len(shown.inner_text()) > 5000
            page.find("[role=note]", "It runs on the server")
            upstream.release("held")
            reader.read_to_end()
        page.find(".status[data-status=completed]")
        page.find(".message[data-role=assistant]", "The last words.")
        page.check_quiet()
