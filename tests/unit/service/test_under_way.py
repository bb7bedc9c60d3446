"""An unfinished streamed response can be retrieved from every server, and an unknown outcome is reported as such."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn

import orjson
import pytest

from llama_stack_responses.admission import Admission, Quota, Reservation
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError, OutcomeUnknown
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.generation.connection_options import ConnectionOptions
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.inputs.connection_memory import ConnectionMemory
from llama_stack_responses.intervals import Intervals
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Condition, Op, Unanswered, writes_of
from llama_stack_responses.wire import sse
from llama_stack_responses.wire.http_responses import RunEventsResponse, RunJsonResponse
from llama_stack_responses.wire.request_cycle import RequestCycle
from llama_stack_responses.wire.websocket.session import _nested
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, Round, finish, text
from tests.support.records import WatchedRecords, settled
from tests.support.strict import validate_response
from tests.unit.service.test_short_requests import server

type Json = dict[str, Any]

TOOL: Final = {"type": "function", "name": "f", "description": "d" * 20_000, "parameters": {"type": "object"}}
ASKED: Final[Json] = {
    "model": "m",
    "input": "Hi.",
    "stream": True,
    "tools": [TOOL],
    "instructions": "Be brief.",
    "metadata": {"a": "b"},
}


class UnreachableAfterCommit(WatchedRecords):
    """Records that apply the commit of a response and are unreachable afterwards.

    Attributes:
        loses: whether they become unreachable.
    """

    def __init__(self) -> None:
        super().__init__(MemoryRecords())
        self.loses = False

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        await super().commit(ops, conditions)
        if self.loses and any(op.key.startswith("r/") for op in writes_of(ops)):
            self.away = True
            raise Unanswered("The connection was lost.", lambda: self._pass("settle", settled(applied=True)))


class UnprivilegedAccess(SingleUserAccess):
    """A user without access to others' responses."""

    def allows(self, *_: object) -> bool:
        return False


GIVES_UP: Final = Intervals(unknown_outcome_seconds=0.02, store_retry_seconds=0.0)
CONFIG: Final = ResponsesConfig(stream_refusal_seconds=60)


@pytest.fixture
def records() -> UnreachableAfterCommit:
    return UnreachableAfterCommit()


@pytest.fixture
def gate() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def start(
    records: UnreachableAfterCommit, gate: asyncio.Event
) -> AsyncIterator[Callable[..., OpenAIResponsesImpl]]:
    """Start servers on the store whose models send one delta, wait for the gate, and send another."""
    started: list[OpenAIResponsesImpl] = []

    def begin(access: SingleUserAccess | None = None) -> OpenAIResponsesImpl:
        rounds: list[Round] = [[text("Hel"), gate, text("lo"), finish()] for _ in range(3)]
        started.append(server(records, FakeInference(*rounds), access or SingleUserAccess(), GIVES_UP, CONFIG))
        return started[-1]

    yield begin
    records.away = False
    gate.set()
    for each in started:
        for run in list(each._foreground._runs):
            assert isinstance(run, ForegroundRun)
            await run.wait_ended()
        await each.shutdown()


async def begun(impl: OpenAIResponsesImpl, **fields: Any) -> tuple[ForegroundRun, Json]:
    """Return an unfinished response, and its content in the first event."""
    run = await impl.create({**ASKED, **fields})
    assert isinstance(run, ForegroundRun)
    await run.begin()
    events = await run.event_buffer.get(60)
    assert events
    return run, events[0]["response"]


def no_lease() -> Reservation:
    """Fail: no events are held."""
    raise AssertionError("a reservation was created")


async def rest(run: ForegroundRun) -> list[Json]:
    """Return the remaining events."""
    seen: list[Json] = []
    while (events := await run.event_buffer.get(60)) is not None:
        seen += events
    return seen


# In progress


async def test_response_in_progress_can_be_retrieved_from_every_server(
    start: Callable[..., OpenAIResponsesImpl], gate: asyncio.Event
) -> None:
    here, there = start(), start()
    run, created = await begun(here)
    for impl in (here, there):
        found = await impl.reader.retrieve(created["id"])
        validate_response(found)
        assert found == created
        assert (found["status"], found["tools"][0]["description"]) == ("in_progress", TOOL["description"])
    gate.set()
    final = (await rest(run))[-1]["response"]
    assert await there.reader.retrieve(created["id"]) == final


async def test_response_stays_in_progress_after_its_server_died(
    start: Callable[..., OpenAIResponsesImpl],
) -> None:
    here, there = start(), start()
    _, created = await begun(here)
    await here.jobs._heartbeat.end()
    assert (await there.reader.retrieve(created["id"]))["status"] == "in_progress"


async def test_response_in_progress_is_hidden_from_other_users(start: Callable[..., OpenAIResponsesImpl]) -> None:
    here, other = start(), start(UnprivilegedAccess())
    _, created = await begun(here)
    for call in (other.reader.retrieve, other.delete, other.cancel):
        with pytest.raises(ApiError) as refused:
            await call(created["id"])
        assert refused.value.status == 404
    with pytest.raises(ApiError) as refused:
        await other.create({**ASKED, "previous_response_id": created["id"]})
    assert refused.value.code == "previous_response_not_found"


async def test_unstored_response_in_progress_is_not_found(
    start: Callable[..., OpenAIResponsesImpl],
) -> None:
    here = start()
    _, created = await begun(here, store=False)
    with pytest.raises(ApiError) as refused:
        await here.reader.retrieve(created["id"])
    assert refused.value.status == 404


async def test_unsupported_calls_on_response_in_progress_are_refused(start: Callable[..., OpenAIResponsesImpl]) -> None:
    here = start()
    _, created = await begun(here)
    response_id = created["id"]
    refusals: dict[str | None, list[Callable[[], Awaitable[object]]]] = {
        "response_not_ready": [
            lambda: here.reader.follow(response_id, -1, 60, no_lease),
            lambda: here.reader.input_items(response_id, limit=10, after=None, order="asc"),
        ],
        "previous_response_not_ready": [lambda: here.create({**ASKED, "previous_response_id": response_id})],
        None: [lambda: here.cancel(response_id)],
    }
    for code, calls in refusals.items():
        for call in calls:
            with pytest.raises(ApiError) as refused:
                await call()
            assert (refused.value.status, refused.value.code) == (400, code)


async def test_response_deleted_in_progress_fails_for_its_reader(
    start: Callable[..., OpenAIResponsesImpl], gate: asyncio.Event, records: UnreachableAfterCommit
) -> None:
    here, there = start(), start()
    run, created = await begun(here)
    await there.delete(created["id"])
    gate.set()
    last = (await rest(run))[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["message"] == "The response was deleted while it was generated."
    await run.wait_ended()
    await here.jobs.foreground.flush_unstored()
    with pytest.raises(ApiError) as refused:
        await there.reader.retrieve(created["id"])
    assert refused.value.status == 404
    assert [key for key, _ in await records.range("!", "~", limit=99) if not key.startswith(("p/", "se/", "sw/"))] == []


# Unknown outcomes


@pytest.fixture
def lossy(records: UnreachableAfterCommit, gate: asyncio.Event) -> UnreachableAfterCommit:
    """Records that become unreachable with each response that they store."""
    records.loses = True
    gate.set()
    return records


async def answered(answer: RunEventsResponse | RunJsonResponse) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Return the headers and bodies that are sent."""
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("neither a large answer nor a client that does not read")

    scope: dict[str, Any] = {"type": "http", "headers": []}
    with RequestCycle(
        scope, receive, send, request_id="req", unread_seconds=60, abort_connection=refuse, reserve_answer=refuse
    ):
        await answer(scope, receive, send)
    return dict(sent[0]["headers"]), [message["body"] for message in sent[1:] if message["body"]]


async def test_stream_with_unknown_outcome_ends_with_error_not_done(
    start: Callable[..., OpenAIResponsesImpl], lossy: UnreachableAfterCommit
) -> None:
    here = start()
    run = await here.create(ASKED)
    assert isinstance(run, ForegroundRun)
    _, bodies = await answered(RunEventsResponse(run))
    response_id = run.response["id"]
    frames = b"".join(bodies).decode().strip().split("\n\n")
    last = orjson.loads(frames[-1].partition("data: ")[2])
    assert (last["type"], last["code"]) == ("error", "outcome_unknown")
    assert f"Retrieve response '{response_id}'" in last["message"]
    assert not any(f"response.{end}" in frame for frame in frames for end in ("completed", "failed", "incomplete"))
    assert sse.DONE not in bodies
    lossy.away = False
    await here.jobs.foreground.flush_unstored()
    assert (await here.reader.retrieve(response_id))["status"] == "completed"


async def test_unstreamed_unknown_outcome_is_503_without_retry(
    start: Callable[..., OpenAIResponsesImpl], lossy: UnreachableAfterCommit
) -> None:
    here = start()
    run = await here.create({**ASKED, "stream": False})
    assert isinstance(run, ForegroundRun)
    headers, [body] = await answered(RunJsonResponse(run))
    assert headers[b"x-should-retry"] == b"false"
    assert b"retry-after" not in headers
    error = orjson.loads(body)["error"]
    assert (error["type"], error["code"]) == ("server_error", "outcome_unknown")
    assert run.response["id"] in error["message"]


async def test_unknown_outcome_on_websocket_is_error_event(
    start: Callable[..., OpenAIResponsesImpl], lossy: UnreachableAfterCommit
) -> None:
    run = await start().create_on_connection(
        ASKED, ConnectionOptions(ConnectionMemory(1000, Admission(Quota("histories", 10**6, 10**6)).reserve(ANONYMOUS)))
    )
    last = (await rest(run))[-1]
    assert isinstance(run.error, OutcomeUnknown)
    event = _nested(last, run.error)
    assert (event["type"], event["status"], event["error"]["code"]) == ("error", 503, "outcome_unknown")
    assert run.response["status"] == "failed"


async def test_unknown_begin_under_idempotency_key_may_be_retried(
    start: Callable[..., OpenAIResponsesImpl], lossy: UnreachableAfterCommit
) -> None:
    with pytest.raises(ApiError, match="Send it again with the same key") as refused:
        await start().create({**ASKED, "stream": False}, "key")
    assert not isinstance(refused.value, OutcomeUnknown)
    assert (refused.value.status, refused.value.retry_after) == (503, 1)


@pytest.fixture
async def refused(
    request: pytest.FixtureRequest, records: UnreachableAfterCommit, gate: asyncio.Event
) -> AsyncIterator[ForegroundRun]:
    """A stream that the model server refuses once the gate is open; it waits for that as long as the parameter says."""
    config = ResponsesConfig(stream_refusal_seconds=request.param)
    inference = FakeInference(ApiError(429, "Slow down."), accept=gate)
    here = server(records, inference, SingleUserAccess(), GIVES_UP, config)
    run = await here.create(ASKED)
    assert isinstance(run, ForegroundRun)
    yield run
    gate.set()
    await run.wait_ended()
    await here.shutdown()


@pytest.mark.parametrize("refused", [0], indirect=True)
async def test_stream_begins_when_no_refusal_came_in_the_configured_time(refused: ForegroundRun) -> None:
    await refused.begin()


@pytest.mark.parametrize("refused", [60], indirect=True)
async def test_refusal_in_the_configured_time_is_an_error(refused: ForegroundRun, gate: asyncio.Event) -> None:
    begins = asyncio.create_task(refused.begin())
    gate.set()
    with pytest.raises(ApiError, match="Slow down"):
        await begins
