"""On every backend, each line of a batch ends exactly once, whichever servers work for the batch and die."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, BinaryIO, Final, cast

import pytest

from llama_stack_responses.concurrency.fair_budget import FairBudget
from llama_stack_responses.concurrency.share import equal_share
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.core.statuses import ENDED_BATCH
from llama_stack_responses.features.batches import run
from llama_stack_responses.features.batches.dispatcher import Dispatcher
from llama_stack_responses.features.batches.ends import LineEnds, Tries
from llama_stack_responses.features.batches.file_expiry import FileExpiry
from llama_stack_responses.features.batches.input_lines import LineReader
from llama_stack_responses.features.batches.model_slots import ModelSlots
from llama_stack_responses.features.batches.objects import batch_object
from llama_stack_responses.features.batches.parts import Parts
from llama_stack_responses.features.batches.rows import WORK, Batch, Line, Result
from llama_stack_responses.features.batches.settings import Batches
from llama_stack_responses.features.batches.stored import BatchesOfOwners
from llama_stack_responses.features.batches.stored_batches import StoredBatches, cancelled
from llama_stack_responses.jobs.job import Job, JobState
from llama_stack_responses.jobs.served_partitions import ServedPartitions
from llama_stack_responses.jobs.work_class import Work, WorkClass
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.service.detached_responses import Place
from llama_stack_responses.service.idempotency import IdempotencyClaim, IdempotencyKeys
from llama_stack_responses.store.content_names import Hasher
from llama_stack_responses.store.ends import Ended
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.object_events import ObjectEvent, ObjectEvents
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.placement import Placement
from llama_stack_responses.store.records import (
    Condition,
    Conflict,
    Delete,
    Op,
    Put,
    Records,
    committed,
    partitions_of,
)
from llama_stack_responses.telemetry.instrumentation import Telemetry
from tests.contract.backends import Clock
from tests.support.waiting import turns, until

pytestmark = pytest.mark.needs("transactions")

type Json = dict[str, Any]

ADA: Final = Owner("ada")
OF: Final = Hasher(ADA).owner
CHAT: Final = "/v1/chat/completions"
HOUR: Final = 3600.0
USAGE: Final = {
    "input_tokens": 3,
    "input_tokens_details": {"cached_tokens": 1},
    "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 5,
}


FAILURES: Final = {
    each.code: each
    for each in (
        ApiError(400, "No.", code="invalid_prompt"),
        ApiError(429, "No.", code="rate_limit_exceeded"),
        ApiError(502, "No.", code="server_error"),
    )
}
"""Why responses fail, by its code."""


@dataclass
class Files:
    """A file store in memory."""

    contents: dict[str, bytes] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    broken: bool = False

    async def open(self, file_id: str, max_bytes: int) -> BinaryIO:
        if file_id not in self.contents:
            raise ApiError(400, "The file was not found.", code="file_not_found")
        return io.BytesIO(self.contents[file_id])

    async def write(self, name: str, content: BinaryIO, seconds: int | None) -> str:
        content.seek(0)
        self.contents[name] = content.read()
        self.written.append(name)
        return name

    async def delete(self, file_id: str) -> None:
        if self.broken:
            raise ApiError(503, "Away.")
        del self.contents[file_id]


class Responses:
    """Queues and ends the responses of one server; the store has the rows of the batches only.

    Args:
        ends: writes the ends of lines.
        behaviour: by the model of a line: how its response ends, or why it is refused, one for each try.
    """

    def __init__(self, records: Records, clock: Clock, ends: LineEnds, behaviour: Mapping[str, Sequence[Any]]) -> None:
        self._records, self._clock, self._ends, self._behaviour = records, clock, ends, behaviour
        self.waiting: dict[str, Json] = {}
        self.running: set[str] = set()
        self.stored: dict[str, Json] = {}
        self.begun: list[str] = []
        self.dispatcher: Dispatcher | None = None
        self.access = SimpleNamespace(acting_for=self._acting_for)
        self.archive = SimpleNamespace(load=self._load, delete=self._delete)
        self.jobs = SimpleNamespace(
            find_many=self._find_many, cancel=self.cancel, cancel_unbegun=self._cancel_unbegun, forget=self._forget
        )

    def _acting_for(self, owner: Owner, keys: Json) -> AbstractContextManager[None]:
        return nullcontext()

    async def queue(self, body: Json, place: Place) -> None:
        """Queue a response. It is queued if the commit was applied, as in the store, also if the caller is cancelled."""
        await asyncio.shield(self._queued(body, place))

    async def _queued(self, body: Json, place: Place) -> None:
        line = Line.of_response(place.response_id)
        assert line is not None
        ends = self._behaviour.get(body["model"], ["completed"])
        end = ends[min(self.begun.count(body["input"]), len(ends) - 1)]
        self.begun.append(body["input"])
        if isinstance(end, ApiError):
            raise end
        await self._records.commit(place.ops, place.conditions)
        self.waiting[place.response_id] = {"input": body["input"], "end": end, "store": body.get("store", True)}

    async def end(self, response_id: str, status: str | None = None) -> None:
        """End a response, as the commit of its job does."""
        found = self.waiting.pop(response_id)
        status = status or found["end"]
        error = FAILURES.get(status)
        response = {"id": response_id, "status": "failed" if error else status, "store": found["store"]}
        response |= {"output": found["input"], "error": error.response_error() if error else None, "usage": USAGE}
        self.stored[response_id] = response
        ended = Ended(response, ADA, None, self._clock(), error=error)
        await self._records.commit(self._ends.ops(ended))
        if self.dispatcher:
            self.dispatcher.ended(ended)

    async def end_all(self) -> None:
        for response_id in list(self.waiting):
            await self.end(response_id)

    async def cancel(self, response_id: str) -> None:
        if response_id in self.waiting:
            await self.end(response_id, "cancelled")

    async def _cancel_unbegun(self, ids: Sequence[str]) -> None:
        for response_id in ids:
            if response_id not in self.running:
                await self.cancel(response_id)

    async def _find_many(self, ids: Sequence[str]) -> Json:
        worker = {True: "worker_1", False: None}
        states = {each: JobState(ADA, "", worker[each in self.running]) for each in ids if each in self.waiting}
        return {each: Job(each, state, 1) for each, state in states.items()}

    async def _load(self, response_id: str, expired: bool) -> Any:
        found = self.stored.get(response_id)
        return SimpleNamespace(response=found) if found else None

    async def _delete(self, response_id: str) -> bool:
        return self.stored.pop(response_id, None) is not None

    async def _forget(self, response_id: str) -> None:
        assert response_id not in self.stored


@dataclass
class Models:
    """Answers requests without the Responses API.

    Attributes:
        answers: by model: what it answers or raises, one for each try; without any, it answers at once.
        asked: the inputs that were asked for.
        going_on: is set while models answer.
    """

    answers: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    going_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, endpoint: str, body: Json) -> Json:
        assert endpoint == CHAT
        answers = self.answers.get(body["model"], [{}])
        answer = answers[min(self.asked.count(body["input"]), len(answers) - 1)]
        self.asked.append(body["input"])
        await self.going_on.wait()
        if isinstance(answer, ApiError):
            raise answer
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        return {"object": "chat.completion", "said": body["input"], "usage": usage, **answer}


class Server:
    """A server that works for batches."""

    def __init__(
        self,
        records: Records,
        clock: Clock,
        files: Files | None = None,
        behaviour: Mapping[str, Sequence[Any]] | None = None,
        responses: Responses | None = None,
        models: Models | None = None,
        memory: int = 2**28,
        of_models: Mapping[str, int] | None = None,
        **settings: Any,
    ) -> None:
        self.records, self.clock, self.files = records, clock, files or Files()
        self.settings = Batches(**settings)
        ends = LineEnds(Tries(self.settings.tries, self.settings.retry_seconds), Telemetry())
        self.events = ObjectEvents()
        self.batches = StoredBatches(records, 30 * 24 * HOUR, self.events)
        self.responses = responses or Responses(records, clock, ends, behaviour or {})
        self.dispatcher = Dispatcher(records, poll_seconds=0.01)
        impl, self.places = cast("Any", self.responses), ServedPartitions(records, None).watched(WORK)
        self.models, self.memory = models or Models(), FairBudget(memory)
        self.dispatcher.parts = Parts(
            impl,
            self.models,
            FairBudget(8),
            ModelSlots((of_models or {}).get),
            self.memory,
            self.batches,
            self.places,
            IdempotencyKeys(records),
            self.files,
            Sealer([b"k" * 32]),
            self.settings,
            equal_share,
            Telemetry(),
        )
        self.responses.dispatcher, self.placement = self.dispatcher, Placement(partitions_of(records))

    async def create(self, *models: str, **fields: Any) -> str:
        """Create a batch with a line for each model, and return its id."""
        lines = [
            {
                "custom_id": f"line-{number}",
                "method": "POST",
                "url": fields.get("endpoint", "/v1/responses"),
                "body": {
                    "model": model,
                    "input": f"input {number}",
                    **({} if model != "unstored" else {"store": False}),
                },
            }
            for number, model in enumerate(models, 1)
        ]
        self.files.contents["file-1"] = "\n".join(map(json.dumps, lines)).encode()
        now = self.clock()
        batch_id = Batch.new_id(now, self.placement.of_owner(fields.get("owner", ADA)))
        batch = Batch(batch_id, ADA, "/v1/responses", "file-1", "24h", now, now + 24 * HOUR)
        batch = replace(batch, **fields)
        await self.batches.create(batch, 5)
        return batch.id

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        self.dispatcher.start()
        try:
            yield
        finally:
            await self.dispatcher.stop()

    def has_work(self) -> bool:
        """Return whether this server works for a batch."""
        return bool(self.dispatcher._running)

    def kill(self) -> None:
        """End it without what it does at its end: its lease stays."""
        for each in self.dispatcher._running.values():
            each.task.cancel()
        self.dispatcher._running.clear()
        self.dispatcher.parts = None

    async def cancel(self, batch_id: str) -> None:
        """Cancel a batch as a request to this server does."""
        await self.batches.change(OF, batch_id, partial(cancelled, self.clock()))
        self.dispatcher.look(batch_id)

    async def object(self, batch_id: str) -> Json:
        found = await self.batches.counted(OF, batch_id)
        assert found is not None
        return batch_object(*found)

    async def queued(self, count: int) -> None:
        """Wait until so many lines are queued."""
        await until(lambda: len(self.responses.waiting) == count)

    async def ended(self, batch_id: str, *, ending: bool = True) -> Json:
        """End all lines as they are queued, until the batch has ended and nothing is left to do for it.

        Args:
            ending: whether this ends lines; otherwise the batch does.
        """
        async with asyncio.timeout(60):
            while (await self.object(batch_id))["status"] not in ENDED_BATCH or await self.rows():
                if ending:
                    await self.responses.end_all()
                await asyncio.sleep(0.01)
        return await self.object(batch_id)

    async def rest(self, batch_id: str) -> None:
        """End lines as they are queued, until nothing changes any more."""
        last, unchanged = None, 0
        while unchanged < 20:
            await self.responses.end_all()
            await asyncio.sleep(0.01)
            now = await self.object(batch_id), list(self.responses.begun), len(self.models.asked)
            unchanged, last = unchanged + 1 if now == last else 0, now

    async def rows(self) -> list[str]:
        """Return the keys of rows other than batches and counters."""
        found = await self.records.range("bt/", "bt0", limit=10_000)
        return [key for key, _ in found if key[:5] not in ("bt/o/", "bt/c/")]

    def lines(self, file_id: str | None) -> dict[str, Json]:
        """Return the lines of a file, by their custom ids."""
        lines = [json.loads(each) for each in self.files.contents[file_id or ""].splitlines()] if file_id else []
        found = {each["custom_id"]: each for each in lines}
        assert len(found) == len(lines)
        return found


@pytest.mark.every_store
async def test_lines_end_once_each_in_their_order(records: Records, clock: Clock) -> None:
    server = Server(records, clock, ahead=7)
    batch_id = await server.create(*["m"] * 30)
    async with server.working():
        await server.queued(7)
        ended = await server.ended(batch_id)
    assert (ended["status"], ended["model"], ended["error_file_id"]) == ("completed", "m", None)
    assert ended["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
    assert (ended["usage"]["total_tokens"], ended["usage"]["input_tokens_details"]["cached_tokens"]) == (150, 30)
    output = server.lines(ended["output_file_id"])
    assert list(output) == [f"line-{number}" for number in range(1, 31)]
    bodies = {name: each["response"]["body"]["output"] for name, each in output.items()}
    assert bodies == {f"line-{number}": f"input {number}" for number in range(1, 31)}
    assert sorted(server.responses.begun) == sorted(f"input {number}" for number in range(1, 31))


@pytest.mark.every_store
async def test_end_of_a_batch_is_recorded_once_with_it(records: Records, clock: Clock) -> None:
    server, written = Server(records, clock), list[ObjectEvent]()
    server.events.add(lambda event: [Put(f"seen/{event.id}", event.type.encode())], written.append)
    completed = await server.create("m")
    clock.now += 1
    failed = await server.create("m", input_file_id="file-9")
    async with server.working():
        await server.ended(completed)
        await server.ended(failed)
        withdrawn = await server.create("m")
        await server.cancel(withdrawn)
        await server.ended(withdrawn, ending=False)
        expired = await server.create("m")
        clock.now += 24 * HOUR + 1
        await server.ended(expired, ending=False)
    ends = {
        completed: "batch.completed",
        failed: "batch.failed",
        withdrawn: "batch.cancelled",
        expired: "batch.expired",
    }
    rows = await records.range("seen/", "seen0", limit=9)
    assert {key: (row.value, row.version) for key, row in rows} == {
        f"seen/{batch_id}": (kind.encode(), 1) for batch_id, kind in ends.items()
    }
    assert sorted((event.id, event.type, event.owner) for event in written) == sorted(
        (batch_id, kind, ADA) for batch_id, kind in ends.items()
    )


async def test_counts_have_each_line_that_has_ended(records: Records, clock: Clock) -> None:
    server = Server(records, clock, behaviour={"bad": ["invalid_prompt"]}, ahead=10)
    batch_id = await server.create(*["m", "bad"] * 5)
    async with server.working():
        await server.queued(10)
        for ended, response_id in enumerate(sorted(server.responses.waiting), 1):
            await server.responses.end(response_id)
            counts = (await server.object(batch_id))["request_counts"]
            assert counts["completed"] + counts["failed"] == ended
        assert counts == {"total": 10, "completed": 5, "failed": 5}
        await server.ended(batch_id)


@pytest.mark.every_store
async def test_server_that_dies_is_replaced_and_no_line_is_lost_or_repeated(records: Records, clock: Clock) -> None:
    files = Files()
    dying = Server(records, clock, files, ahead=5)
    batch_id = await dying.create(*["m"] * 20)
    async with dying.working():
        await dying.queued(5)
        for response_id in sorted(dying.responses.waiting)[:2]:
            await dying.responses.end(response_id)
        dying.kill()
    other = Server(records, clock, files, responses=dying.responses, ahead=5)
    async with other.working():
        await asyncio.sleep(0.05)
        assert not other.dispatcher._running, "the lease has not expired"
        clock.now += 11
        ended = await other.ended(batch_id)
    assert ended["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert len(other.lines(ended["output_file_id"])) == 20
    assert len(set(other.responses.begun)) == 20
    assert len(other.responses.stored) == 20


@pytest.mark.every_store
async def test_two_servers_that_both_work_for_a_batch_end_each_line_once(records: Records, clock: Clock) -> None:
    files = Files()
    one = Server(records, clock, files, ahead=5)
    other = Server(records, clock, files, responses=one.responses, ahead=5)
    batch_id = await one.create(*["m"] * 25)
    async with one.working():
        await one.queued(5)
        await records.commit([Delete(f"bt/p/{batch_id}")])
        one.dispatcher._poll_seconds = HOUR
        async with other.working():
            ended = await other.ended(batch_id)
    assert ended["request_counts"] == {"total": 25, "completed": 25, "failed": 0}
    assert len(other.lines(ended["output_file_id"])) == 25
    assert len(one.responses.stored) == 25


@pytest.mark.every_store
async def test_line_is_not_queued_once_its_batch_has_ended_or_is_cancelled(records: Records, clock: Clock) -> None:
    server = Server(records, clock)
    batch_id = await server.create("m")
    line = Line(batch_id, 1)
    queued = server.batches.queued(line)

    async def late() -> list[bool]:
        """Have commits arrive with which the line would begin, or would be refused."""
        refused = Result(None, False, 404, {})
        batches = server.batches
        return [await committed(records, *queued), await batches.begin_later(line, 0), await batches.end(line, refused)]

    await server.batches.change(OF, batch_id, partial(cancelled, clock()))
    assert await late() == [False] * 3
    async with server.working():
        await server.ended(batch_id)
    assert await late() == [False] * 3
    assert await server.rows() == []


@pytest.mark.every_store
@pytest.mark.parametrize("then", ["running", "completed", "server_error"], ids=["runs", "has ended", "is tried again"])
async def test_line_is_not_queued_again_while_it(records: Records, clock: Clock, then: str) -> None:
    server = Server(records, clock)
    line = Line(await server.create("m"), 1)
    place = Place(line.response_id, Work(WorkClass.BATCH), *server.batches.queued(line))
    await server.responses.queue({"model": "m", "input": "input 1"}, place)
    if then != "running":
        server.responses.waiting[line.response_id]["end"] = then
        await server.responses.end(line.response_id)
    assert not await committed(records, *server.batches.queued(line))


async def test_busy_model_server_is_tried_again_with_pauses(records: Records, clock: Clock) -> None:
    behaviour = {"busy": ["rate_limit_exceeded", "server_error", "completed"], "down": ["server_error"]}
    server = Server(records, clock, behaviour=behaviour, tries=3, retry_seconds=3)
    batch_id = await server.create("busy", "down")
    async with server.working():
        for passing in (2.2, 4.4):  # both together are less than a lease
            await server.queued(2)
            await server.responses.end_all()
            clock.now += passing
            await asyncio.sleep(0.6)
            assert not server.responses.waiting, "it is not due"
            clock.now += passing
        await server.queued(2)
        ended = await server.ended(batch_id)
    assert ended["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    [error] = server.lines(ended["error_file_id"]).values()
    assert (error["response"]["status_code"], error["response"]["body"]) == (502, FAILURES["server_error"].body())
    assert [each[-2:] for each in server.responses.stored] == ["03", "03"], "earlier tries are deleted"


async def test_earlier_try_is_deleted_although_the_server_dies_that_queues_the_next_one(
    records: Records, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = Server(records, clock, behaviour={"busy": ["server_error", "completed"]}, retry_seconds=3)
    batch_id, queue = await dying.create("busy"), dying.responses.queue

    async def die(body: Json, place: Place) -> None:
        await queue(body, place)
        if len(dying.responses.begun) == 2:
            dying.kill()
            await asyncio.sleep(0)

    monkeypatch.setattr(dying.responses, "queue", die)
    async with dying.working():
        await dying.queued(1)
        await dying.responses.end_all()
        clock.now += 4
        await until(lambda: not dying.has_work())
        clock.now += 11
    other = Server(records, clock, dying.files, responses=dying.responses)
    async with other.working():
        await other.ended(batch_id)
    assert [each[-2:] for each in other.responses.stored] == ["02"]


async def test_line_that_cannot_be_admitted_now_is_queued_later(records: Records, clock: Clock) -> None:
    limited = [ApiError(429, "Slow down.", retry_after=30), ApiError(503, "Away."), "completed"]
    server = Server(records, clock, behaviour={"limited": limited})
    batch_id = await server.create("limited", "m")
    async with server.working():
        await until(lambda: "input 1" in server.responses.begun)
        await asyncio.sleep(0.6)
        assert server.responses.begun.count("input 1") == 1
        clock.now += 31
        await until(lambda: server.responses.begun.count("input 1") == 2)
        clock.now += 31
        ended = await server.ended(batch_id)
    assert ended["request_counts"] == {"total": 2, "completed": 2, "failed": 0}


async def test_refused_line_is_in_the_error_file_with_its_error(records: Records, clock: Clock) -> None:
    refusal = ApiError(404, "No such model.", code="model_not_found", param="model")
    server = Server(records, clock, behaviour={"unserved": [refusal]})
    batch_id = await server.create("unserved", "m")
    async with server.working():
        ended = await server.ended(batch_id)
    [error] = server.lines(ended["error_file_id"]).values()
    assert error["response"]["status_code"] == 404
    assert error["response"]["body"] == refusal.body()


async def test_line_has_no_other_character_that_ends_one(records: Records, clock: Clock) -> None:
    said = "a\u2028b\u2029c\x85d\x0be"
    refusal = ApiError(400, said)
    server = Server(records, clock, behaviour={"unserved": [refusal]})
    batch_id = await server.create("unserved")
    async with server.working():
        ended = await server.ended(batch_id)
    [line] = server.files.contents[ended["error_file_id"]].decode().splitlines()
    assert json.loads(line)["response"]["body"]["error"]["message"] == said


async def test_batch_that_expires_has_its_other_lines_in_the_error_file(records: Records, clock: Clock) -> None:
    server = Server(records, clock, ahead=4)
    batch_id = await server.create(*["m"] * 10)
    async with server.working():
        await server.queued(4)
        for response_id in sorted(server.responses.waiting)[:3]:
            await server.responses.end(response_id)
        await until(lambda: len(server.responses.begun) == 7)
        clock.now += 24 * HOUR + 1
        await server.ended(batch_id, ending=False)
        ended = await server.ended(batch_id)
    assert (ended["status"], bool(ended["expired_at"]), bool(ended["finalizing_at"])) == ("expired", True, True)
    assert ended["request_counts"] == {"total": 10, "completed": 3, "failed": 7}
    errors = server.lines(ended["error_file_id"])
    assert list(errors) == [f"line-{number}" for number in range(4, 11)]
    assert {each["error"]["code"] for each in errors.values()} == {"batch_expired"}


async def test_cancelled_batch_keeps_what_has_ended(records: Records, clock: Clock) -> None:
    server = Server(records, clock, ahead=4)
    batch_id = await server.create(*["m"] * 10)
    async with server.working():
        await server.queued(4)
        first, second, *_ = sorted(server.responses.waiting)
        await server.responses.end(first)
        server.responses.running.add(second)
        await server.cancel(batch_id)
        await server.ended(batch_id, ending=False)
    ended = await server.object(batch_id)
    assert ended["status"] == "cancelled"
    assert list(server.lines(ended["output_file_id"])) == ["line-1"]
    assert {each["error"]["code"] for each in server.lines(ended["error_file_id"]).values()} == {"batch_cancelled"}
    # Those that wait, before the one that runs: one of them would begin in its place.
    assert len(server.responses.stored) >= 4
    assert [*server.responses.stored][-1] == second


async def test_line_whose_job_is_gone_ends(records: Records, clock: Clock) -> None:
    server = Server(records, clock)
    batch_id = await server.create("m", "m")
    async with server.working():
        await server.queued(2)
        server.responses.waiting.pop(max(server.responses.waiting))
        clock.now += 11
        ended = await server.ended(batch_id)
    [error] = server.lines(ended["error_file_id"]).values()
    assert (error["custom_id"], error["error"]["code"]) == ("line-2", "request_cancelled")


async def test_response_that_is_not_to_be_stored_is_deleted_after_the_batch(records: Records, clock: Clock) -> None:
    server = Server(records, clock)
    batch_id = await server.create("m", "unstored")
    async with server.working():
        ended = await server.ended(batch_id)
    assert len(server.lines(ended["output_file_id"])) == 2
    assert [each["output"] for each in server.responses.stored.values()] == ["input 1"]


async def test_batch_whose_keys_or_file_are_gone_fails(records: Records, clock: Clock) -> None:
    server = Server(records, clock)
    sealed = await server.create("m", sealed="nothing")
    clock.now += 1
    missing = await server.create("m", input_file_id="file-9")
    async with server.working():
        of_keys, of_file = await server.ended(sealed), await server.ended(missing)
    assert [of_keys["status"], of_file["status"]] == ["failed", "failed"]
    assert [each["errors"]["data"][0]["code"] for each in (of_keys, of_file)] == ["server_error", "file_not_found"]


async def _lose(server: Server, batch_id: str, what: str) -> None:
    """Have a batch that runs lose what it needs for its next lines."""
    match what:
        case "file":
            del server.files.contents["file-1"]
        case "lines":
            server.files.contents["file-1"] = b""
        case "keys":
            await server.batches.change(OF, batch_id, partial(replace, sealed="nothing"))


@pytest.mark.parametrize(("lost", "end"), [("file", "cancelled"), ("lines", "failed"), ("keys", "failed")])
async def test_batch_that_cannot_go_on_keeps_what_has_ended(
    records: Records, clock: Clock, lost: str, end: str
) -> None:
    files = Files()
    dying = Server(records, clock, files, ahead=3)
    written = list[ObjectEvent]()
    batch_id = await dying.create("m", "n", *["m"] * 8)
    async with dying.working():
        await until(lambda: len(dying.responses.waiting) == 4)
        await dying.responses.end(min(dying.responses.waiting))
        await dying.responses.end(max(dying.responses.waiting), "invalid_prompt")
        dying.kill()
    await _lose(dying, batch_id, lost)
    if end == "cancelled":
        await dying.batches.change(OF, batch_id, partial(cancelled, clock()))
    other = Server(records, clock, files, responses=dying.responses, ahead=3)
    other.events.add(lambda _: [], written.append)
    clock.now += 11
    async with other.working():
        ended = await other.ended(batch_id, ending=False)
    assert (ended["status"], bool(ended[f"{end}_at"])) == (end, True)
    assert bool(ended["errors"]) is (end == "failed")
    assert ended["request_counts"] == {"total": 10, "completed": 1, "failed": 9}
    assert list(other.lines(ended["output_file_id"])) == ["line-1"]
    errors = other.lines(ended["error_file_id"])
    assert [*errors] == [f"line-{number}" for number in range(2, 11)]
    codes = sorted(each["error"]["code"] for each in errors.values() if each["error"])
    assert codes == [f"batch_{end}"] * 8
    assert [each.type for each in written] == [f"batch.{end}"]


async def test_batch_whose_lines_have_all_begun_needs_its_file_no_more(records: Records, clock: Clock) -> None:
    files = Files()
    dying = Server(records, clock, files)
    batch_id = await dying.create("m", "m", "n")
    async with dying.working():
        await dying.queued(3)
        await dying.responses.end(min(dying.responses.waiting))
        dying.kill()
    del files.contents["file-1"]
    other = Server(records, clock, files, responses=dying.responses)
    clock.now += 11
    async with other.working():
        await until(other.has_work)
        await turns(50)
        ended = await other.ended(batch_id)
    assert (ended["status"], ended["errors"]) == ("completed", None)
    assert len(other.lines(ended["output_file_id"])) == 3


@pytest.mark.every_store
@pytest.mark.parametrize("endpoint", ["/v1/responses", CHAT])
async def test_lines_are_cancelled_although_the_server_that_works_for_the_batch_is_dead(
    records: Records, clock: Clock, endpoint: str
) -> None:
    files = Files()
    dying = Server(records, clock, files, ahead=5)
    batch_id = await dying.create(*["m"] * 12, endpoint=endpoint)
    other = Server(records, clock, files, responses=dying.responses, ahead=5)
    async with dying.working():
        await until(lambda: len(dying.responses.waiting) + len(dying.models.asked) == 5)
        dying.responses.running |= {max(dying.responses.waiting, default="")}
        dying.kill()
    async with other.working():
        await other.cancel(batch_id)
        async with asyncio.timeout(60):
            while await other.batches.running(batch_id):
                await turns(20)
        assert (await other.object(batch_id))["status"] == "cancelling", "the lease has not expired"
        assert not other.responses.waiting
        clock.now += 11
        ended = await other.ended(batch_id, ending=False)
    assert (ended["status"], ended["request_counts"]["failed"]) == ("cancelled", 12)
    assert len(other.lines(ended["error_file_id"])) == 12


@pytest.mark.parametrize("late", [False, True], ids=["failed before", "fails afterwards"])
async def test_cancelled_batch_does_not_wait_for_a_file_store_that_fails(
    late: bool, records: Records, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_LOOK_SECONDS", HOUR)
    server = Server(records, clock)
    batch_id = await server.create("m")
    opened, failing = list[str](), asyncio.Event()

    async def fail(file_id: str, max_bytes: int) -> BinaryIO:
        opened.append(file_id)
        await failing.wait()
        raise ApiError(503, "Away.")

    server.files.open = fail  # type: ignore[method-assign]
    if not late:
        failing.set()
    async with server.working():
        await until(lambda: len(opened) == 1)
        await server.cancel(batch_id)
        failing.set()
        ended = await server.ended(batch_id, ending=False)
    assert (ended["status"], len(opened)) == ("cancelled", 1)


async def test_lines_of_another_endpoint_are_answered_by_the_models(records: Records, clock: Clock) -> None:
    refusal = ApiError(400, "Wrong.", param="messages")
    answers: dict[str, list[Any]] = {
        "busy": [ApiError(429, "Busy."), {}],
        "wrong": [refusal],
        "down": [ApiError(502, "Down.")],
    }
    models = Models(answers)
    models.going_on.set()
    server = Server(records, clock, models=models, tries=2, retry_seconds=1)
    batch_id = await server.create("m", "busy", "wrong", "down", endpoint=CHAT)
    async with server.working():
        await until(lambda: len(models.asked) == 4)
        clock.now += 9
        ended = await server.ended(batch_id)
    assert ended["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    assert ended["usage"]["total_tokens"] == 10
    output = server.lines(ended["output_file_id"])
    bodies = {name: each["response"]["body"]["said"] for name, each in output.items()}
    assert bodies == {"line-1": "input 1", "line-2": "input 2"}
    errors = server.lines(ended["error_file_id"])
    assert [each["response"]["status_code"] for each in errors.values()] == [400, 502]
    assert errors["line-3"]["response"]["body"] == refusal.body()
    assert not server.responses.begun


@pytest.mark.every_store
async def test_lines_that_a_dead_server_was_asking_for_are_asked_again(records: Records, clock: Clock) -> None:
    files, dying_models, models = Files(), Models(), Models()
    dying = Server(records, clock, files, models=dying_models, ahead=5)
    batch_id = await dying.create(*["m"] * 12, endpoint=CHAT)
    async with dying.working():
        await until(lambda: len(dying_models.asked) == 5)
        dying.kill()
    models.going_on.set()
    other = Server(records, clock, files, models=models, ahead=5)
    clock.now += 11
    async with other.working():
        ended = await other.ended(batch_id)
    assert ended["request_counts"] == {"total": 12, "completed": 12, "failed": 0}
    assert len(other.lines(ended["output_file_id"])) == 12
    assert sorted(models.asked) == sorted(f"input {number}" for number in range(1, 13))


@pytest.mark.parametrize("endpoint", ["/v1/responses", CHAT])
async def test_lines_begin_as_far_as_there_is_memory(records: Records, clock: Clock, endpoint: str) -> None:
    models = Models()
    server = Server(records, clock, models=models, memory=1)
    batch_id = await server.create(*["m"] * 4, endpoint=endpoint)
    async with server.working():
        if endpoint == CHAT:
            await until(lambda: len(models.asked) == 1 and server.memory.waiting > 0)
            models.going_on.set()
        ended = await server.ended(batch_id)
    assert ended["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
    assert server.memory.is_idle


async def test_slow_model_of_another_endpoint_holds_as_many_slots_as_it_may(records: Records, clock: Clock) -> None:
    models = Models()
    server = Server(records, clock, models=models, of_models={"slow": 2})
    batch_id = await server.create(*["slow"] * 20, "m", endpoint=CHAT)
    async with server.working():
        await until(lambda: "input 21" in models.asked)
        assert len(models.asked) == 3
        models.going_on.set()
        ended = await server.ended(batch_id)
    assert ended["request_counts"]["completed"] == 21


async def test_cancelled_batch_ends_what_its_server_asks(records: Records, clock: Clock) -> None:
    server = Server(records, clock, ahead=3)
    batch_id = await server.create(*["m"] * 5, endpoint=CHAT)
    async with server.working():
        await until(lambda: len(server.models.asked) == 3)
        await server.cancel(batch_id)
        ended = await server.ended(batch_id, ending=False)
    assert (ended["status"], ended["request_counts"]["failed"]) == ("cancelled", 5)
    assert {each["error"]["code"] for each in server.lines(ended["error_file_id"]).values()} == {"batch_cancelled"}


async def test_cancelled_batch_does_not_wait_until_its_lines_have_begun(records: Records, clock: Clock) -> None:
    server = Server(records, clock, memory=1)
    batch_id = await server.create(*["m"] * 4, endpoint=CHAT)
    async with server.working():
        await until(lambda: len(server.models.asked) == 1 and server.memory.waiting > 0)
        await server.batches.change(OF, batch_id, partial(cancelled, clock()))
        ended = await server.ended(batch_id, ending=False)
    assert (ended["status"], ended["request_counts"]["failed"]) == ("cancelled", 4)
    assert (len(server.models.asked), server.memory.is_idle) == (1, True)


async def test_batch_is_cancelled_while_its_file_is_checked(
    records: Records, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = asyncio.Event()

    async def page(_: LineReader) -> Any:
        reads.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(LineReader, "page", page)
    server = Server(records, clock)
    batch_id = await server.create("m")
    async with server.working():
        await reads.wait()
        await server.batches.change(OF, batch_id, partial(cancelled, clock()))
        ended = await server.ended(batch_id, ending=False)
    assert (ended["status"], ended["request_counts"]["total"], ended["error_file_id"]) == ("cancelled", 0, None)


async def test_lines_of_a_slow_model_do_not_hold_those_of_others(
    records: Records, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LineReader.page, "__defaults__", (20,))
    server = Server(records, clock, ahead=3)
    # More lines than a page of the input has.
    batch_id = await server.create(*["slow"] * 24, *["m"] * 5, "slow", "m")
    async with server.working():
        await until(lambda: len(server.responses.waiting) == 6)
        waiting = sorted(server.responses.waiting)  # they begin together
        slow = [each for each in waiting if Line.of_response(each).number <= 24]  # type: ignore[union-attr]
        async with asyncio.timeout(60):
            while (await server.object(batch_id))["request_counts"]["completed"] < 6:
                for each in [each for each in server.responses.waiting if each not in slow]:
                    await server.responses.end(each)
                await asyncio.sleep(0.01)
        assert sorted(server.responses.waiting) == slow
        assert (await server.batches.find(OF, batch_id)).line <= 4  # type: ignore[union-attr]
        ended = await server.ended(batch_id)
    assert ended["request_counts"] == {"total": 31, "completed": 31, "failed": 0}
    assert list(server.lines(ended["output_file_id"])) == [f"line-{number}" for number in range(1, 32)]
    assert len(server.responses.begun) == 31


async def test_lines_of_a_failing_model_do_not_hold_those_of_others(records: Records, clock: Clock) -> None:
    behaviour: dict[str, Any] = {"away": [ApiError(502, "Away."), "completed"], "down": ["server_error", "completed"]}
    server = Server(records, clock, behaviour=behaviour, ahead=2, retry_seconds=100)
    batch_id = await server.create(*["away", "down"] * 4, *["m"] * 9)
    async with server.working():
        async with asyncio.timeout(60):
            while (await server.object(batch_id))["request_counts"]["completed"] < 9:
                await server.responses.end_all()
                await turns(20)
        assert len([each for each in server.responses.begun if int(each.split()[1]) <= 8]) == 4
        async with asyncio.timeout(60):
            while (await server.object(batch_id))["status"] not in ENDED_BATCH:
                await server.rest(batch_id)
                clock.now += 301  # A line that is on its way would count as lost.
        ended = await server.ended(batch_id)
    assert ended["request_counts"] == {"total": 17, "completed": 17, "failed": 0}


@pytest.mark.parametrize("endpoint", ["/v1/responses", CHAT])
async def test_batch_with_several_models_goes_on_elsewhere(records: Records, clock: Clock, endpoint: str) -> None:
    files, models = Files(), Models()
    dying = Server(records, clock, files, models=models, ahead=2)
    batch_id = await dying.create(*["slow"] * 5, *["m"] * 20, endpoint=endpoint)
    async with dying.working():
        await until(lambda: len(dying.responses.waiting) + len(models.asked) == 4)
        await asyncio.sleep(0.2)
        for each in [*dying.responses.waiting][-2:]:
            await dying.responses.end(each)
        await until(lambda: endpoint == CHAT or len(dying.responses.waiting) == 4)
        dying.kill()
    clock.now += 11
    other = Server(records, clock, files, responses=dying.responses, models=Models(), ahead=2)
    other.models.going_on.set()
    async with other.working():
        ended = await other.ended(batch_id)
    assert ended["request_counts"] == {"total": 25, "completed": 25, "failed": 0}
    if endpoint != CHAT:
        assert sorted(dying.responses.begun) == sorted({*dying.responses.begun}), "no line begins twice"


async def test_files_of_results_are_deleted_when_they_expire(records: Records, clock: Clock) -> None:
    refused = ApiError(404, "No such model.", code="model_not_found")
    server = Server(records, clock, behaviour={"unserved": [refused]})
    batch_id = await server.create("m", "unserved", output_seconds=3600)
    expiry = FileExpiry(records)
    async with server.working():
        async with asyncio.timeout(60):
            while (await server.object(batch_id))["status"] not in ENDED_BATCH:
                await server.responses.end_all()
                await turns(20)
    parts = server.dispatcher.parts
    assert parts is not None
    ended, names = await server.object(batch_id), set(server.files.contents)
    clock.now += 3590
    await expiry.delete_due(parts)
    assert set(server.files.contents) == names
    clock.now += 11
    server.files.broken = True
    await expiry.delete_due(parts)
    server.files.broken = False
    await expiry.delete_due(parts)
    assert set(server.files.contents) == names, "it is tried again later"
    clock.now += 601
    await expiry.delete_due(parts)
    assert names - set(server.files.contents) == {ended["output_file_id"], ended["error_file_id"]}
    assert not await records.range("bt/x/", "bt/x0", limit=1)


async def test_batches_with_one_key_are_one(records: Records, clock: Clock) -> None:
    server, keys = Server(records, clock), IdempotencyKeys(records)
    now, placement = clock(), Placement(partitions_of(records))
    tag = placement.of_owner(ADA)
    claim = IdempotencyClaim.of(ADA, "key", {"input_file_id": "file-1"}, placement, tag)

    async def create() -> str:
        batch = Batch(Batch.new_id(now, tag), ADA, CHAT, "file-1", "24h", now, now + HOUR)
        await server.batches.create(batch, 5, await keys.claim_ops(claim, batch.id))
        return batch.id

    results = await asyncio.gather(*(create() for _ in range(3)), return_exceptions=True)
    [created] = [each for each in results if isinstance(each, str)]
    assert [type(each) for each in results if not isinstance(each, str)] == [Conflict, Conflict]
    assert await keys.find(claim) == created
    assert len(await server.batches.every(OF)) == 1


class Part(MemoryRecords):
    """A partition that may be away."""

    away = False

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        if self.away:
            raise ApiError(503, "away")
        await super().commit(ops, conditions)


async def test_batches_begin_while_the_partition_of_another_is_away(clock: Clock) -> None:
    parts = [Part(clock=clock) for _ in range(8)]
    server, bob = Server(PartitionedRecords(parts), clock), Owner("bob")
    away = server.placement.of_owner(ADA) % len(parts)
    assert away != server.placement.of_owner(bob) % len(parts)
    await server.create("m")
    async with server.working():
        await server.queued(1)
        parts[away].away = True
        server.dispatcher.look(await server.create("m", owner=bob))
        await server.queued(2)
        assert len(server.dispatcher._running) == 2, "it was not waited for until its lease had expired"
        parts[away].away = False


async def test_batches_for_which_a_server_has_no_room_begin_at_another_one(clock: Clock) -> None:
    records = PartitionedRecords([MemoryRecords(clock=clock) for _ in range(8)])
    full = Server(records, clock, at_once=1)
    idle = Server(records, clock, files=full.files)
    home = full.placement.of_owner(ADA) % 8
    full.places._served.own, idle.places._served.own = [home], [(home + 1) % 8]
    for _ in range(2):
        await full.create("m")
    async with full.working():
        await until(full.has_work)
        async with idle.working():
            await until(idle.has_work)
            assert len(full.dispatcher._running) == 1


async def test_user_with_many_batches_that_have_not_ended_is_refused(records: Records, clock: Clock) -> None:
    server = Server(records, clock)
    for _ in range(5):
        await server.create("m", owner=Owner("bob"))
    ids = [await server.create("m") for _ in range(5)]
    with pytest.raises(ApiError, match="You have 5 batches"):
        await server.create("m")
    await server.batches.change(OF, ids[2], lambda batch: replace(batch, status="failed"))
    await server.create("m")
    with pytest.raises(ApiError, match="You have 5 batches"):
        await server.create("m")


async def test_batch_of_another_user_does_not_wait_for_many_of_one(records: Records, clock: Clock) -> None:
    server = Server(records, clock, at_once=2)
    for _ in range(4):
        await server.create("m")
    clock.now += 1
    other = await server.create("m", owner=Owner("bob"))
    async with server.working():
        await until(lambda: len(server.dispatcher._running) == 2)
        assert other in server.dispatcher._running


async def test_batches_of_an_owner_are_exported_and_deleted(records: Records, clock: Clock) -> None:
    server, stored = Server(records, clock), BatchesOfOwners(records)
    batch_id = await server.create("m")
    assert [each async for each in stored.ids_of(ADA)] == [batch_id]
    [exported] = [each async for each in stored.export(ADA)]
    assert (exported.type, exported.fields["id"]) == ("batch", batch_id)
    await stored.delete(ADA, batch_id)
    await stored.forget(ADA)
    assert not await records.range("bt/", "bt0", limit=10)
    with pytest.raises(ApiError):
        await stored.delete(ADA, batch_id)
