"""A commit that reaches the store's server after its sender has given it up changes nothing that it must not change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.layout import second
from llama_stack_responses.store.postgres import PostgresRecords
from llama_stack_responses.store.records import Put, Records, Unanswered, VersionIs
from llama_stack_responses.store.redis import RedisRecords
from tests.contract.backends import SECONDS, BackendLocation, schema_of
from tests.contract.conversations import response
from tests.contract.test_lost_answers import Server, done, stored
from tests.support.clock import LoopClock
from tests.support.holding_relay import HoldingRelay
from tests.support.waiting import until_found

TIMEOUT: Final = 30.0

type Open = Callable[..., Records]


@pytest.fixture(params=["redis", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
async def relay(kind: str, place: BackendLocation) -> AsyncIterator[HoldingRelay]:
    async with HoldingRelay(_port(place.url_of(kind))) as running:
        yield running


@pytest.fixture
async def open_at(kind: str, place: BackendLocation) -> AsyncIterator[Callable[..., Records]]:
    """Opens records at the server itself, or at a port in place of the server's."""
    opened: list[Records] = []

    def open_records(port: int | None = None, **more: float) -> Records:
        url = place.url_of(kind)
        url = url.replace(f":{_port(url)}", f":{port}") if port else url
        if kind == "redis":
            opened.append(RedisRecords(url, prefix=f"{place.name}:", **more))  # type: ignore[arg-type]
        else:
            opened.append(PostgresRecords(url, schema=schema_of(place), **more))  # type: ignore[arg-type]
        return opened[-1]

    yield open_records
    for records in opened:
        await records.close()


@pytest.fixture
def near(open_at: Open) -> Records:
    """Records that reach their server at once."""
    return open_at(timeout=SECONDS)


def _port(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


async def _given_up(relay: HoldingRelay, records: Records, clock: LoopClock, key: str) -> Unanswered:
    """Write a key for the first time in a commit that is held back; return the error with which it is given up."""
    await records.commit([Put("early-key", b"")])  # its answer tells the store's time; its script is known from then on
    relay.hold(key.encode())
    committing = asyncio.ensure_future(records.commit([Put(key, b"late")], [VersionIs(key, None)]))
    await relay.holding()
    await clock.passes_until(committing.done)
    with pytest.raises(Unanswered) as lost:
        await committing
    return lost.value


async def test_commit_that_comes_late_within_its_time_is_applied(
    relay: HoldingRelay, open_at: Open, near: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _given_up(relay, open_at(relay.port, timeout=TIMEOUT), LoopClock(monkeypatch), "late-key")
    await relay.release()
    assert (await near.get_many(["late-key"]))["late-key"].value == b"late"


async def test_commit_that_comes_after_its_deadline_is_not_applied(
    relay: HoldingRelay, open_at: Open, near: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = open_at(relay.port, timeout=TIMEOUT, applied_seconds=0.5)
    await _given_up(relay, records, LoopClock(monkeypatch), "late-key")
    deadline = await near.now() + 0.5

    async def has_passed() -> bool:
        return await near.now() > deadline

    await until_found(has_passed)
    await relay.release()
    assert await near.get_many(["late-key"]) == {}


async def test_settled_commit_is_not_applied_when_it_comes(
    relay: HoldingRelay, open_at: Open, near: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = await _given_up(relay, open_at(relay.port, timeout=TIMEOUT), LoopClock(monkeypatch), "late-key")
    # Its own answer may be lost: it is asked again.
    assert [await lost.settle(), await lost.settle()] == [False, False]
    await relay.release()
    assert await near.get_many(["late-key"]) == {}


async def test_settling_an_applied_commit_leaves_what_it_wrote(
    relay: HoldingRelay, open_at: Open, near: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = await _given_up(relay, open_at(relay.port, timeout=TIMEOUT), LoopClock(monkeypatch), "late-key")
    await relay.release()
    assert [await lost.settle(), await lost.settle()] == [True, True]
    assert (await near.get_many(["late-key"]))["late-key"].version == 1


async def test_deleted_response_is_not_brought_back_by_its_late_creation(
    relay: HoldingRelay,
    open_at: Open,
    near: Records,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = LoopClock(monkeypatch)
    here = Server(open_at(relay.port, timeout=TIMEOUT))
    await here.records.commit([Put("early-key", b"")])
    final = done(response(status="in_progress"))
    # The order of a response is in a key of its creation, and in none that is read for it.
    relay.hold(second(final["created_at"]).encode())
    keeping = asyncio.ensure_future(here.keep(final, stored()))
    await relay.holding()
    await clock.passes_until(lambda: "outcome of a commit unknown" in caplog.text)
    await keeping
    assert await here.archive.delete(final["id"])
    await relay.release()
    assert await here.archive.load(final["id"]) is None
    assert await near.range(f"r/{final['id']}", f"r/{final['id']}~", limit=1) == []


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0], ids=["back", "ahead"])
async def test_commit_is_applied_once_after_a_jump_of_the_stores_clock(near: Records, seconds: float) -> None:
    await near.commit([Put("a", b"1")])
    here: Any = near
    deadline = here._deadline if isinstance(near, RedisRecords) else here._connections.deadline
    deadline.told(await near.now() + seconds)
    await near.commit([Put("a", b"2")], [VersionIs("a", 1)])
    assert (await near.get_many(["a"]))["a"].version == 2
    assert deadline.next() == pytest.approx(await near.now() + 30.0, abs=25.0)


async def test_commits_that_always_come_too_late_are_refused_in_a_sentence(open_at: Open) -> None:
    records = open_at(timeout=SECONDS, applied_seconds=-1.0)
    with pytest.raises(ApiError, match="too slow, or its server's clock jumps") as refused:
        await records.commit([Put("a", b"1")])
    assert (refused.value.status, refused.value.retry_after) == (503, 1)
    assert await records.get_many(["a"]) == {}
