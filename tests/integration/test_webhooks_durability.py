"""Servers that are killed while they deliver lose no webhook; one that is sent again has the same id."""

from __future__ import annotations

from base64 import b64encode
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, Final

import httpx
import openai
import pytest

from benchmarks.batch_durability import CI, two_servers
from tests.support.stack import Host, LiveStack
from tests.support.upstream import UpstreamProcess
from tests.support.waiting import wait_until
from tests.support.web import Answer, ReceivedRequest, Web

# What is delivered does not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.one_host]

SECRET: Final = f"whsec_{b64encode(bytes(32)).decode()}"
AT_A_TIME: Final = 16
PATIENCE: Final = 240.0


def begin(server: LiveStack) -> list[str]:
    """Create background responses, and return their ids."""
    body = {"model": "local/echo", "input": "Hi", "background": True}
    with httpx.Client(base_url=f"{server.base_url}/v1", timeout=60, trust_env=False) as client:
        return [client.post("/responses", json=body).raise_for_status().json()["id"] for _ in range(AT_A_TIME)]


def delivered(web: Web) -> set[str]:
    """Return the ids of the responses of which a server has told."""
    return {str(each.json()["data"]["id"]) for each in web.seen}


def test_webhooks_survive_the_deaths_of_the_store_and_of_the_servers_that_deliver_them(
    host: Host, tmp_path: Path
) -> None:
    held_from, killed = 0, Event()

    def accept(_: ReceivedRequest) -> Answer:
        if len(web.seen) >= held_from:
            assert killed.wait(PATIENCE)
        return Answer(b"ok")

    with Web() as web, UpstreamProcess(tmp_path / "upstream.log") as process:
        web.answer_all = accept
        endpoint = {"url": web.url("/hook"), "secret": SECRET, "events": ["response.completed"]}
        settings = {"webhooks": {"allow_http": True, "retry_seconds": 1.0, "endpoints": [endpoint]}}
        made: list[str] = []
        with two_servers(replace(CI, store="redis"), tmp_path, process.client, host, settings) as both:
            one, other = both.servers
            assert both.store
            # One of them has the lease of the endpoint; the other one takes it over.
            for victim, creator in ((one, other), (both.store, one), (other, one)):
                killed.clear()
                held_from = len(web.seen) + 3
                made += begin(creator)
                wait_until(lambda count=held_from: len(web.seen) >= count, PATIENCE)  # type: ignore[misc]
                victim.kill()
                assert not delivered(web) >= {*made}, "nothing was left to deliver"
                killed.set()
                victim.start()
            wait_until(lambda: delivered(web) >= {*made}, PATIENCE)
        seen = list(web.seen)

    ids = defaultdict[str, set[str]](set)
    with openai.OpenAI(api_key="none", base_url="http://127.0.0.1:1") as client:
        for each in seen:
            event: Any = client.webhooks.unwrap(each.body, each.headers, secret=SECRET)
            ids[event.data.id].add(each.headers["webhook-id"])
    assert ids.keys() == {*made}
    assert {len(each) for each in ids.values()} == {1}
    assert len({name for each in ids.values() for name in each}) == len(made)
