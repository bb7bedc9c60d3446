"""A full disk and a locked file under a real server: no acknowledged response is lost, and the server recovers."""

import random
import resource
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from llama_stack_responses.cli import main
from tests.support.reader import Reader
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.strict import check_stream
from tests.support.tracebacks import assert_no_traceback
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, checked, error_of, output_text

# The store does not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.one_host]

FULL: Final = "The response store cannot be read or written: its disk reports an error or is full."
LOCKED: Final = "The response store is busy: another process holds its lock."
ROOM: Final = 300_000  # free bytes of the disk
WRITERS: Final = 4
MOST: Final = 200  # requests of one writer, many more than the disk has room for


def noise(size: int) -> str:
    """Return `size` characters that do not compress well."""
    return random.Random(size).randbytes(size // 2).hex()


LONG: Final = [noise(ROOM + number) for number in range(4)]


@pytest.fixture(scope="module")
def server(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """A stack whose disk the tests fill."""
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with LiveStack(STARTER, env, tmp_path_factory.mktemp("faults"), host=host) as live:
        yield live


@pytest.fixture
def wire(server: LiveStack, upstream: Upstream) -> Iterator[Wire]:
    """A client of that stack."""
    with Wire(server) as wire:
        yield wire


@contextmanager
def full_disk(server: LiveStack) -> Iterator[None]:
    """Limit the server's file size to little more than its largest file, as on a disk that is nearly full."""
    largest = max(path.stat().st_size for path in server.state_dir.rglob("*") if path.is_file())
    _, most = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (largest + ROOM, most))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (most, most))


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold a write lock on the server's database file."""
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


def refused(answer: httpx.Response, why: str) -> None:
    """Check that the store's failure is reported with a Retry-After."""
    error = error_of(answer, 503)
    assert (error["type"], error["message"]) == ("server_error", why)
    assert answer.headers["retry-after"] == "1"


def failed_response(reader: Reader, why: str) -> Json:
    """Check that a stream fails because its response could not be stored, and return that response."""
    events = reader.read_to_end()
    response = check_stream(events)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert (events[-2]["message"], response["error"]["message"], response["status"]) == (why, why, "failed")
    return response


def check_stored(wire: Wire, kept: list[Json], failed: dict[str, str]) -> None:
    """Check that all acknowledged responses are stored completely, and otherwise only the failed ones."""
    listed = {each["id"]: each for page in wire.pages(limit=100) for each in page["data"]}
    for response in kept:
        [item] = wire.get(f"/{response['id']}/input_items").json()["data"]
        assert listed.pop(response["id"]) == response | {"input": [item]}
        assert wire.retrieve(response["id"]) == response
        assert output_text(response).startswith(item["content"][0]["text"][:1000])
    assert {response_id: each["error"]["message"] for response_id, each in listed.items()} == failed


def test_full_disk_loses_no_acknowledged_responses(server: LiveStack, wire: Wire, upstream: Upstream) -> None:
    # If the disk was full for long, the job may run again; its last reply is not held.
    held = reply(text("some ", *LONG), hold=1)
    upstream.script("held", [held, held, reply(held.chunks)])
    kept = [wire.create(model="local/echo", input=f"before {number}") for number in range(3)]
    with Reader.create(wire, model="local/held", input="some") as reader:
        reader.read_to("some ")
        work = wire.create(model="local/held", input="some", background=True)
        upstream.wait_for("held", 2, chunks=1)
        with full_disk(server):
            kept += fill(server)
            upstream.release("held")
            failed = failed_response(reader, FULL)
            for response in kept:
                assert wire.retrieve(response["id"]) == response
            assert wire.retrieve(work["id"])["status"] == "in_progress"
    kept.append(wire.create(model="local/echo", input="after"))
    kept.append(ended(wire, work["id"], "completed"))
    ended(wire, failed["id"], "failed")
    server.kill()
    server.start()
    with Wire(server) as again:
        check_stored(again, kept, {failed["id"]: FULL})


def fill(server: LiveStack) -> list[Json]:
    """Store growing responses until the disk is full, and return the stored ones."""

    def write(lane: int) -> list[Json]:
        created: list[Json] = []
        with Wire(server) as wire:
            for turn in range(MOST):
                answer = wire.post({"model": "local/echo", "input": f"{lane} {turn} {noise(2000 * turn + 2 * lane)}"})
                if answer.status_code != 200:
                    refused(answer, FULL)
                    return created
                created.append(checked(answer))
        raise AssertionError("the disk was never full")

    with ThreadPoolExecutor(WRITERS) as writers:
        return [response for each in writers.map(write, range(WRITERS)) for response in each]


def ended(wire: Wire, response_id: str, status: str) -> Json:
    """Wait until a response is stored with this status, and return it."""

    def has_ended() -> bool:
        answer = wire.get(f"/{response_id}")
        return answer.is_success and answer.json()["status"] == status

    wait_until(has_ended)
    return wire.retrieve(response_id)


def test_damaged_file_is_reported_and_recovered(server: LiveStack, wire: Wire) -> None:
    kept = [wire.create(model="local/echo", input=f"{number} {noise(40_000)}") for number in range(12)]
    server.kill()
    path = server.state_dir / "responses.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(len(whole) // 2 // 4096 * 4096)
        file.write(random.Random(1).randbytes(8 * 4096))
    server.start()
    with Wire(server) as damaged:
        wait_until(lambda: damaged.http.get("/ready").json().get("integrity") == "damaged")
        assert damaged.http.get("/ready").status_code == 503
    server.kill()
    recovered = server.state_dir / "recovered.db"
    assert main(["recover", str(path), str(recovered)]) == 0
    for suffix in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
    recovered.rename(path)
    server.start()
    with Wire(server) as again:
        found = [response for response in kept if again.get(f"/{response['id']}").json() == response]
        assert len(found) > len(kept) // 2
        wait_until(lambda: again.http.get("/ready").json()["store"] == "ok")
        assert "integrity" not in again.http.get("/ready").json()
        assert {each["id"] for each in again.listed(limit=100)} >= {response["id"] for response in found}
        again.create(model="local/echo", input="after")


def test_locked_database_file_is_503_and_loses_no_responses(server: LiveStack, wire: Wire, upstream: Upstream) -> None:
    upstream.script("held", reply(text("one ", "two"), hold=1))
    kept = wire.create(model="local/echo", input="before")
    request: dict[str, Any] = {"model": "local/echo", "input": "too early"}
    with Reader.create(wire, model="local/held", input="one two") as reader, ThreadPoolExecutor(8) as clients:
        reader.read_to("one ")
        with locked(server.state_dir / "responses.db"):
            answers: list[Future[httpx.Response]] = [
                clients.submit(wire.post, request),
                clients.submit(wire.post, request | {"stream": True}),
                clients.submit(wire.post, request | {"background": True}),
                clients.submit(wire.http.delete, f"/responses/{kept['id']}"),
            ]
            upstream.release("held")
            assert wire.retrieve(kept["id"]) == kept
            assert kept["id"] in [each["id"] for each in wire.listed()]
            for answer in answers:
                refused(answer.result(), LOCKED)
            failed = failed_response(reader, LOCKED)
        after = wire.create(model="local/echo", input="after", previous_response_id=kept["id"])
    assert ended(wire, failed["id"], "failed")["error"] == failed["error"]
    assert [each["id"] for each in wire.listed(limit=3)] == [after["id"], failed["id"], kept["id"]]
    assert output_text(after) == "after"
    assert_no_traceback(server.log)
