"""A server of each released version and one of this version on one store, as while servers are replaced one by one."""

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.differences import differences
from tests.support.golden_store import (
    SCRIPTS,
    SECRET,
    TEMPLATES,
    Json,
    Kind,
    StoreClient,
    golden_files,
    make_responses,
)
from tests.support.sse import SseReader
from tests.support.stack import Host, LiveStack
from tests.support.stores import serving
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.variants import responses_config, variant
from tests.support.waiting import wait_until

# Stored records do not depend on the host. A pair of servers takes longer to start than its tests.
pytestmark = [pytest.mark.live, pytest.mark.one_host, pytest.mark.extended, pytest.mark.days_by("servers")]

VERSIONS: Final = golden_files("package.tar.xz")
"""The packages and templates of released versions."""


@dataclass(frozen=True)
class Pair:
    """Two servers of one store.

    Attributes:
        old: that of the earlier version.
        new: that of this version.
    """

    old: LiveStack
    new: LiveStack

    def both_ways(self) -> list[tuple[LiveStack, LiveStack]]:
        """Return who writes and who reads."""
        return [(self.old, self.new), (self.new, self.old)]


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda path: path.parent.name)
def earlier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an earlier version."""
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module", params=TEMPLATES)
def servers(
    request: pytest.FixtureRequest,
    earlier: Path,
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    """Two servers on one store of each kind. Each makes one background response at a time."""
    kind: Kind = request.param
    folder = tmp_path_factory.mktemp(kind)

    def change(config: Json) -> None:
        responses_config(config)["background"] = {"concurrency": 1}
        if kind == "sqlite":
            responses_config(config)["store"] = {"type": "sqlite", "path": str(folder / "shared.db")}

    config = variant(earlier / "templates" / TEMPLATES[kind] / "config.yaml", folder / "config.yaml", change)
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url, "RESPONSES_SECRET": SECRET}
    packages = os.pathsep.join(map(str, (earlier, earlier / "providers" / "openai_chat")))
    with serving(kind, folder / "server") as server:
        env |= server.environment if server else {}
        before = env | {"PYTHONPATH": packages}
        with (
            LiveStack(config, before, folder / "old", host=host, fork=False) as old,
            LiveStack(config, env, folder / "new", host=host) as new,
        ):
            wait_until(new.is_ready)
            yield Pair(old, new)


@pytest.fixture
def pair(servers: Pair, upstream: Upstream) -> Pair:
    """The two servers, whose models answer from the beginning of their scripts."""
    script(upstream)
    return servers


def script(upstream: Upstream) -> None:
    """Let the models answer from the beginning."""
    for model, replies in SCRIPTS.items():
        upstream.script(model, replies)


def status_of(asking: StoreClient, name: str) -> str:
    """Return the status of a response."""
    return str(asking.http.get(f"/responses/{name}").raise_for_status().json()["status"])


def has_ended(asking: StoreClient, name: str) -> bool:
    """Whether a response neither waits nor runs."""
    return status_of(asking, name) not in ("queued", "in_progress")


def is_cancelled(asking: StoreClient, name: str) -> bool:
    """Whether a response is cancelled."""
    return status_of(asking, name) == "cancelled"


def read_to(asking: StoreClient, name: str, end: str) -> None:
    """Read the stream of a running response to this text."""
    with asking.http.stream("GET", f"/responses/{name}", params={"stream": "true"}) as stream:
        reader = SseReader()
        for data in stream.iter_bytes():
            if any(event.get("delta") == end for _, event in reader.feed(data)):
                return
    raise AssertionError(f"the stream of {name} ends before {end!r}")


def test_each_version_reads_what_the_other_has_stored(pair: Pair, upstream: Upstream) -> None:
    for writer, reader in pair.both_ways():
        script(upstream)
        with StoreClient(writer) as writing, StoreClient(reader) as reading:
            responses, conversations = make_responses(writing)
            before, now = (reading, writing) if writer is pair.new else (writing, reading)
            for name in responses:
                assert list(differences(before.about_response(name), now.about_response(name))) == []
            for name in conversations:
                assert list(differences(before.about_conversation(name), now.about_conversation(name))) == []


def test_each_version_continues_and_deletes_what_the_other_has_stored(pair: Pair, upstream: Upstream) -> None:
    talk = None
    for writer, reader in pair.both_ways() * 2:
        with StoreClient(writer) as writing, StoreClient(reader) as reading:
            first = writing.create("thinks", "Remember 7.", include=["reasoning.encrypted_content"])
            second = reading.create("plain", "And?", previous_response_id=first["id"])
            writing.create("plain", "Go on.", previous_response_id=second["id"])
            assert [each["role"] for each in upstream.requests("plain")[-1].body["messages"]] == [
                "user",
                "assistant",
            ] * 2 + ["user"]
            sealed = next(each for each in first["output"] if each["type"] == "reasoning")
            reading.create("plain", [{"role": "user", "content": "Why?"}, sealed, {"role": "user", "content": "So?"}])
            talk = talk or writing.conversation()
            reading.create("plain", "one", conversation=talk)
            writing.create("plain", "two", conversation=talk)
            assert reading.about_conversation(talk) == writing.about_conversation(talk)
            for deleting, name in ((writing, second["id"]), (reading, first["id"])):
                assert deleting.http.delete(f"/responses/{name}").status_code == 200
                assert {each.http.get(f"/responses/{name}").status_code for each in (writing, reading)} == {404}


def test_idempotency_key_of_one_version_is_known_to_the_other(pair: Pair) -> None:
    for number, (writer, reader) in enumerate(pair.both_ways()):
        responses = [
            httpx.post(
                f"{server.base_url}/v1/responses",
                json={"model": "local/plain", "input": "once"},
                headers={"idempotency-key": f"key-{number}"},
                timeout=240,
                trust_env=False,
            ).json()["id"]
            for server in (writer, reader)
        ]
        assert responses[0] == responses[1]


def test_background_responses_are_followed_and_cancelled_through_the_other_version(
    pair: Pair, upstream: Upstream
) -> None:
    """Both servers run one at a time."""
    upstream.script("held", reply(text("one ", "two"), hold=1))
    for writer, reader in pair.both_ways():
        with StoreClient(writer) as writing, StoreClient(reader) as reading:
            running = [writing.create("held", "Count.", background=True)["id"] for _ in range(2)]
            for asking in (writing, reading):
                for name in running:
                    read_to(asking, name, "one ")
            for name in running:
                assert reading.http.post(f"/responses/{name}/cancel").status_code == 200
                for asking in (writing, reading):
                    wait_until(partial(is_cancelled, asking, name))


def test_each_version_finishes_the_background_responses_of_the_other_when_that_dies(
    pair: Pair, upstream: Upstream
) -> None:
    for dying, other in pair.both_ways():
        upstream.script("held", reply(text("one ", "two"), hold=1))
        with StoreClient(dying) as asking:
            names = [asking.create("held", "Count.", background=True)["id"] for _ in range(4)]
            read_to(asking, names[0], "one ")
        dying.kill()
        upstream.script("held", reply(text("one ", "two")))
        upstream.release("held")
        with StoreClient(other) as asking:
            for name in names:
                wait_until(partial(has_ended, asking, name), every=0.25)
                found = asking.about_response(name)
                assert found["response"]["status"] == "completed"
                assert [each["sequence_number"] for each in found["events"]] == list(range(len(found["events"])))
        dying.start()
