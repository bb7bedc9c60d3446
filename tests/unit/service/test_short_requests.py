"""The reads and commits that a short stored request makes.

They are counted, since counts are the same on every machine. Each one is a round trip, and in SQLite a wait for a
thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from llama_stack_responses.admission import Admission
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.fetch.address_policy import AddressPolicy
from llama_stack_responses.generation.dependencies import Dependencies
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.inputs.attachments import open_attachments
from llama_stack_responses.inputs.files import NoFiles
from llama_stack_responses.inputs.moderation import NoModeration
from llama_stack_responses.intervals import DEFAULT, Intervals
from llama_stack_responses.process_pool.pool import WorkerPool
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.kept_secret import SecretInMemory
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Condition, Op, Record, Records, writes_of
from llama_stack_responses.telemetry.instrumentation import Telemetry
from llama_stack_responses.tools.registry import HostedToolServices
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, finish, text
from tests.support.records import WatchedRecords

type Json = dict[str, Any]

ROUNDS = 8
TOOL = {"type": "function", "name": "f", "description": "d" * 400, "parameters": {"type": "object"}}


class CountingRecords(WatchedRecords):
    """Record the reads and commits for each response.

    Attributes:
        read: the keys of each read of rows that hold responses.
        written: the keys of each commit that concerns a response.
    """

    def __init__(self) -> None:
        super().__init__(MemoryRecords())
        self.read: list[list[str]] = []
        self.written: list[list[str]] = []

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        if any(key[:2] in ("r/", "n/", "b/") for key in keys):
            self.read.append(list(keys))
        return await super().get_many(keys, max_bytes=max_bytes)

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        keys = [op.key for op in writes_of(ops)]
        if any("/resp_" in key for key in keys):
            self.written.append(keys)
        await super().commit(ops, conditions)


@pytest.fixture
def ledger() -> CountingRecords:
    return CountingRecords()


def server(
    records: Records,
    inference: FakeInference,
    access: SingleUserAccess,
    intervals: Intervals = DEFAULT,
    config: ResponsesConfig | None = None,
    **more: Any,
) -> OpenAIResponsesImpl:
    """Return a server without HTTP and without a host; `more` are further `Dependencies`."""
    config = config or ResponsesConfig()
    contents = Admission(config.files.content_quota)
    services = HostedToolServices()
    pool = WorkerPool(config.files.pool_limits)
    attachments = open_attachments(NoFiles(), config, pool, contents, AddressPolicy())
    dependencies = Dependencies(inference, attachments, None, services, NoModeration(), Telemetry(), pool, **more)
    sealer = Sealer(config.secret_bytes, SecretInMemory())
    return OpenAIResponsesImpl(config, records, sealer, dependencies, access, intervals)


@pytest.fixture
async def impl(ledger: CountingRecords) -> AsyncIterator[OpenAIResponsesImpl]:
    """A server whose model answers at once."""
    inference = FakeInference(*([text(f"Answer {number}."), finish()] for number in range(ROUNDS)))
    created = server(ledger, inference, SingleUserAccess())
    yield created
    await created.shutdown()


async def ask(impl: OpenAIResponsesImpl, ledger: CountingRecords, question: str, **fields: Any) -> Json:
    """Return the response to a question. Afterwards, `ledger` holds only the calls for it."""
    ledger.read.clear()
    ledger.written.clear()
    run = await impl.create({"model": "m", "input": question, **fields})
    assert isinstance(run, ForegroundRun)
    if fields.get("stream"):
        while await run.event_buffer.get(60) is not None:
            pass
    return await run.finish()


@pytest.mark.parametrize(("stream", "commits"), [(False, 1), (True, 2)])
async def test_short_response_takes_one_read_and_one_commit(
    impl: OpenAIResponsesImpl, ledger: CountingRecords, stream: bool, commits: int
) -> None:
    """A streamed response takes a second commit, which announces it before its reader knows of it."""
    await ask(impl, ledger, "One?", stream=stream)
    assert (len(ledger.read), len(ledger.written)) == (1, commits)


async def test_continued_response_reads_no_key_twice_before_its_end(
    impl: OpenAIResponsesImpl, ledger: CountingRecords
) -> None:
    first = await ask(impl, ledger, "One?", tools=[TOOL], instructions="i" * 400)
    second = await ask(impl, ledger, "Two?", tools=[TOOL], instructions="i" * 400, previous_response_id=first["id"])
    *before, _ = ledger.read
    asked = [key for keys in before for key in keys]
    assert [sorted({key[0] for key in keys}) for keys in before] == [["r"], ["n"], ["n"]]
    assert len(asked) == len(set(asked))
    assert (len(ledger.read), len(ledger.written)) == (4, 1)
    assert second["previous_response_id"] == first["id"]
