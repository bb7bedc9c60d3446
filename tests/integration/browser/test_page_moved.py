"""A background response whose server was killed while it ran, on the page of the server that went on with it."""

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser
from tests.support.reader import Reader
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.variants import open_this_machine, responses_config, variant
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire

# `test_replicas.py` and `test_background.py` have the moves without a browser.
pytestmark = [pytest.mark.live, pytest.mark.extended]

HELD = reply(text("one ", "two "), hold=2)
WHOLE = reply(text("one ", "two ", "three"))


@pytest.fixture
def mortal(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """A stack that records chat requests, to be killed."""

    def change(config: Json) -> None:
        open_this_machine(config)
        responses_config(config)["ui"] = {"record_requests": True}

    folder = tmp_path_factory.mktemp("mortal")
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with LiveStack(variant(STARTER, folder / "config.yaml", change), env, folder / "state", host=host) as live:
        yield live


def test_open_pages_go_on_when_their_server_is_back(browser: Browser, mortal: LiveStack, upstream: Upstream) -> None:
    upstream.script("moved", [HELD, WHOLE])
    with Wire(mortal) as wire:
        created = wire.post({"model": "local/moved", "input": "Count.", "background": True}).json()["id"]
    with browser.page(mortal.base_url) as page, browser.page(mortal.base_url) as listed:
        listed.goto("/ui")
        listed.find(f".list-row[data-id={created}] .status[data-status=in_progress]")
        page.goto(f"/ui/responses/{created}")
        page.find(".growing .message", "one two")
        mortal.kill()
        listed.find(".connection[data-state=off]", "Not connected")
        mortal.start(mortal.port)
        page.find(".head .status[data-status=completed]")
        page.find(".message[data-role=assistant] .md", "one two three")
        listed.find(".connection[data-state=on]")
        listed.find(f".list-row[data-id={created}] .status[data-status=completed]")


@pytest.mark.parametrize("background", [True, False])
def test_killed_server_shows_no_running_response_once_its_lease_has_expired(
    browser: Browser, mortal: LiveStack, upstream: Upstream, background: bool
) -> None:
    upstream.script("moved", [HELD, WHOLE])
    with (
        Wire(mortal) as wire,
        browser.page(mortal.base_url) as page,
        browser.page(mortal.base_url) as live,
        browser.page(mortal.base_url) as listed,
        Reader.create(wire, model="local/moved", input="Count.", background=background) as reader,
    ):
        reader.read_to("two ")
        live.goto("/ui/live")
        live.find(".live-row .status[data-status=in_progress]", "Running")
        page.goto(f"/ui/responses/{reader.response_id}")
        page.find("[role=note]", "It runs on this server.")
        page.find(".head .status[data-status=in_progress]", "Running")
        listed.goto("/ui")
        if background:  # the list has a response in the foreground once it has ended
            listed.find(".list-row .status[data-status=in_progress]", "Running")
        mortal.kill()
        reader.read_to_death()
        if background:
            listed.find(".list-row .status[data-status=stalled]", "No sign of life")
        for one in (page, live):
            one.find(".status[data-status=stalled]", "No sign of life")
            one.gone(".status[data-status=in_progress]")
            words = one.page.locator("main").inner_text()
            assert "this server" not in words
            assert "The server does not answer" in words
        live.find(".notice", "This is what it said last")
        mortal.start(mortal.port)
        page.find(f".head .status[data-status={'completed' if background else 'failed'}]")
        live.find(".empty", "Nothing runs now")
        live.gone(".notice", "This is what it said last")
        listed.find(".list-row .status:is([data-status=completed], [data-status=failed])")


def test_response_of_a_killed_server_shows_both_tries(browser: Browser, mortal: LiveStack, upstream: Upstream) -> None:
    upstream.script("moved", [HELD, WHOLE])
    with (
        Wire(mortal) as wire,
        Reader.create(wire, model="local/moved", input="Count.", background=True) as reader,
    ):
        reader.read_to("two ")
        mortal.kill()
        reader.read_to_death()
    mortal.start()
    with Wire(mortal) as wire:
        created = reader.response_id
        wait_until(lambda: wire.retrieve(created)["status"] == "completed")
        view = wire.http.get(f"/ui/responses/{created}").json()
        [lost, answered] = view["timing"]["rounds"]
        assert (lost["kind"], answered["kind"], view["timing"]["tries"]) == ("interrupted", "answer", 2)
        assert 0 <= view["timing"]["queue_ms"] <= lost["start_ms"] <= lost["end_ms"] <= answered["start_ms"]
        requests = wire.http.get(f"/ui/responses/{created}/requests").json()["data"]
        assert [(one["round"], one["attempt"]) for one in requests] == [(0, 1), (1, 2)]
        assert [one["request"]["messages"][-1]["content"] for one in requests] == ["Count.", "Count."]
        events = wire.http.get(f"/ui/responses/{created}/events").json()["data"]
        times = [one["at_ms"] for one in events]
        assert times == sorted(times)
        assert times[0] < lost["end_ms"] <= times[-1]
        with browser.page(mortal.base_url) as page:
            page.goto(f"/ui/responses/{created}")
            page.find(".lane[data-kind=cut]", "Cut off")
            assert "Tries\n2" in page.find(".facts", "Tries").inner_text()
            page.find("summary", "Chat requests").click()
            page.find(".requests summary", "attempt 2")
            page.check_quiet()
        wire.http.delete(f"/responses/{created}")
        assert wire.http.get(f"/ui/responses/{created}/requests").status_code == 404
