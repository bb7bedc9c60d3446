"""This version reads the stores that released versions left, response by response, and finishes their work."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.differences import differences
from tests.support.golden_store import (
    SECRET,
    TEMPLATES,
    WHOLE,
    GoldenStore,
    StoreClient,
    golden_files,
    keep_for_ever,
    load,
)
from tests.support.stack import REPOSITORY, Host, LiveStack
from tests.support.stores import serving
from tests.support.upstream import Upstream, UpstreamProcess
from tests.support.variants import variant
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, output_text

# The store does not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.one_host]

RESPONSES: Final = 12
"""Ended responses of each store."""

FILES: Final = [
    pytest.param(
        path,
        id=f"{path.parent.name}-{path.name.removesuffix('.json.xz')}",
        marks=() if "sqlite" in path.name else pytest.mark.extended,
    )
    for path in golden_files(".json.xz")
]


@pytest.fixture(scope="module", params=FILES)
def golden(request: pytest.FixtureRequest) -> GoldenStore:
    return GoldenStore.read(request.param)


@pytest.fixture(scope="module")
def stack(
    golden: GoldenStore,
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveStack]:
    """A server of this version on the store."""
    folder = tmp_path_factory.mktemp("golden")
    upstream_process.client.reset()
    for model in ("held", "work"):
        upstream_process.client.script(model, WHOLE)
    config = variant(
        REPOSITORY / "templates" / TEMPLATES[golden.kind] / "config.yaml", folder / "config.yaml", keep_for_ever
    )
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url, "RESPONSES_SECRET": SECRET}
    with serving(golden.kind, folder / "server") as server:
        env |= server.environment if server else {}
        load(golden, server, folder / "state")
        with LiveStack(config, env, folder / "state", host=host) as running:
            yield running


def await_end(wire: Wire, name: str) -> None:
    """Wait until a response has ended."""
    wait_until(lambda: wire.retrieve(name)["status"] not in ("queued", "in_progress"))


def test_responses_of_a_released_version_are_answered_as_before(golden: GoldenStore, stack: LiveStack) -> None:
    assert len(golden.responses) == RESPONSES
    with StoreClient(stack) as asking:
        now = {name: asking.about_response(name) for name in golden.responses}
    assert list(differences(golden.responses, now)) == []


def test_conversations_of_a_released_version_are_answered_as_before(golden: GoldenStore, stack: LiveStack) -> None:
    with StoreClient(stack) as asking:
        now = {name: asking.about_conversation(name) for name in golden.conversations}
    assert list(differences(golden.conversations, now)) == []


def test_background_responses_of_a_released_version_are_finished(golden: GoldenStore, stack: LiveStack) -> None:
    with Wire(stack) as wire:
        for name in golden.unfinished:
            await_end(wire, name)
            assert output_text(wire.retrieve(name)).endswith("one two three")


def test_responses_of_a_released_version_can_be_continued(
    golden: GoldenStore, stack: LiveStack, upstream: Upstream
) -> None:
    with Wire(stack) as wire:
        for name, before in golden.responses.items():
            if before["response"]["status"] != "completed" or before["response"]["output"][-1]["type"] != "message":
                continue
            continued = wire.create(model="local/echo", input="And now?", previous_response_id=name)
            assert output_text(continued) == "And now?"
            sent = str(upstream.requests("echo")[-1].body["messages"])
            assert before["response"]["output"][-1]["content"][0]["text"] in sent


def test_sealed_reasoning_of_a_released_version_opens(
    golden: GoldenStore, stack: LiveStack, upstream: Upstream
) -> None:
    def seals(before: Json) -> list[Json]:
        return [each for each in before["response"]["output"] if each.get("encrypted_content")]

    sealed = [item for before in golden.responses.values() for item in seals(before)]
    assert sealed
    with Wire(stack) as wire:
        for item in sealed:
            questions = [{"role": "user", "content": "Why?"}, item, {"role": "user", "content": "And?"}]
            wire.create(model="local/echo", input=questions)


def test_deletion_of_all_responses_of_a_released_version_leaves_no_rows(golden: GoldenStore, stack: LiveStack) -> None:
    with Wire(stack) as wire:
        for name in [*golden.responses, *golden.unfinished]:
            await_end(wire, name)
            assert wire.http.delete(f"/responses/{name}").status_code == 200
        assert [wire.get(f"/{name}").status_code for name in golden.responses] == [404] * len(golden.responses)
