"""A server with a feature and a store of another distribution, which entry points name."""

import os
from collections.abc import Iterator

import pytest

from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.third_party import THIRD_PARTY
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.variants import Json, responses_config, variant
from tests.support.wire import Wire, output_text

# Features and stores do not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.one_host]


@pytest.fixture(scope="module")
def stack(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    folder = tmp_path_factory.mktemp("third_party")

    def change(config: Json) -> None:
        settings = responses_config(config)
        settings["store"] = {"type": "other", "name": "acme", "settings": {"max_records": 1000}}
        settings["acme"] = {"greeting": "Good morning"}

    packages = os.pathsep.join(map(str, (THIRD_PARTY, REPOSITORY, REPOSITORY / "providers" / "openai_chat")))
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url, "PYTHONPATH": packages}
    config = variant(STARTER, folder / "config.yaml", change)
    with LiveStack(config, env, folder / "state", host=host, fork=False) as running:
        yield running


@pytest.mark.extended
def test_responses_are_kept_in_store_of_others(stack: LiveStack, upstream: Upstream) -> None:
    upstream.script("stored", [reply(text("One.")), reply(text("Two."))])
    with Wire(stack) as wire:
        first = wire.create(model="local/stored", input="Count.")
        second = wire.create(model="local/stored", input="Go on.", previous_response_id=first["id"])
        assert output_text(wire.retrieve(second["id"])) == "Two."
        assert wire.http.delete(f"/responses/{first['id']}").status_code == 200


def test_feature_of_others_has_routes_settings_and_tasks(stack: LiveStack) -> None:
    with Wire(stack) as wire:
        answer = wire.http.get("/acme/greeting").json()
    assert answer == {"greeting": "Good morning", "ticks": True, "connected": True}


def test_feature_of_others_refuses_requests(stack: LiveStack) -> None:
    with Wire(stack) as wire:
        body = {"model": "local/stored", "input": "Hi.", "metadata": {"acme": "refuse"}}
        refused = wire.http.post("/responses", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "acme refuses this request: remove 'metadata.acme'."
