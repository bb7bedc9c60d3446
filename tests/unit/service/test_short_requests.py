"""What a short stored request asks of the store: how often it goes there, and what for.

Counted, since that is the same on every machine. Each time is a round trip, and in SQLite a wait for a thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.access import Action, Kind
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.generation.dependencies import Surroundings
from llama_stack_responses.generation.run import Run
from llama_stack_responses.inputs.attachments import open_attachments
from llama_stack_responses.inputs.files import NoFiles, uploaded_with
from llama_stack_responses.moderation.moderator import NoModerator
from llama_stack_responses.process_pool.pool import WorkerPool
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Condition, Op, Record, writes_of
from llama_stack_responses.telemetry.telemetry import Telemetry
from llama_stack_responses.tools.registry import Services
from tests.support.inference import FakeInference, finish, text
from tests.support.records import WatchedRecords

type Json = dict[str, Any]

ROUNDS = 8
TOOL = {"type": "function", "name": "f", "description": "d" * 400, "parameters": {"type": "object"}}


class Ledger(WatchedRecords):
    """Takes down what is asked for one response after the other.

    Attributes:
        read: the keys of each read of what responses are kept in.
        written: the keys of each commit that has something to do with a response.
    """

    def __init__(self) -> None:
        super().__init__(MemoryRecords())
        self.read: list[list[str]] = []
        self.written: list[list[str]] = []

    async def get_many(self, keys: Sequence[str]) -> dict[str, Record]:
        if any(key[:2] in ("r/", "n/", "b/") for key in keys):
            self.read.append(list(keys))
        return await super().get_many(keys)

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        keys = [op.key for op in writes_of(ops)]
        if any("/resp_" in key for key in keys):
            self.written.append(keys)
        await super().commit(ops, conditions)


class Everybody:
    """One user, who may do everything."""

    def who(self) -> Owner:
        return ANONYMOUS

    def keys(self) -> Mapping[str, Any]:
        return {}

    def acting_for(self, owner: Owner, keys: Mapping[str, Any]) -> AbstractContextManager[None]:
        return nullcontext()

    def allows(self, action: Action, kind: Kind, identifier: str, owner: Owner) -> bool:
        return True


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def server(records: WatchedRecords, inference: FakeInference, access: Everybody) -> OpenAIResponsesImpl:
    """A server without HTTP and without a host."""
    config = ResponsesConfig()
    services = Services(lambda: ANONYMOUS, uploaded_with(NoFiles()))
    pool = WorkerPool(config.files.of_workers)
    attachments = open_attachments(NoFiles(), config, pool)
    surroundings = Surroundings(inference, attachments, None, services, NoModerator(), Telemetry(), pool)
    return OpenAIResponsesImpl(config, records, surroundings, access)


@pytest.fixture
async def impl(ledger: Ledger) -> AsyncIterator[OpenAIResponsesImpl]:
    """A server whose model answers at once."""
    inference = FakeInference(*([text(f"Answer {number}."), finish()] for number in range(ROUNDS)))
    made = server(ledger, inference, Everybody())
    yield made
    await made.shutdown()


async def ask(impl: OpenAIResponsesImpl, ledger: Ledger, question: str, **fields: Any) -> Json:
    """The response to a question; the ledger has what was done for it alone."""
    ledger.read.clear()
    ledger.written.clear()
    run = await impl.create({"model": "m", "input": question, **fields})
    assert isinstance(run, Run)
    if fields.get("stream"):
        while await run.outbox.take(60) is not None:
            pass
    return await run.finish()


@pytest.mark.parametrize(("stream", "commits"), [(False, 1), (True, 2)])
async def test_a_response_takes_one_read_and_one_commit(
    impl: OpenAIResponsesImpl, ledger: Ledger, stream: bool, commits: int
) -> None:
    """A streamed one has been noted before its reader knew of it: that is the second commit."""
    await ask(impl, ledger, "One?", stream=stream)
    assert (len(ledger.read), len(ledger.written)) == (1, commits)


async def test_a_response_that_continues_another_reads_nothing_twice_before_its_end(
    impl: OpenAIResponsesImpl, ledger: Ledger
) -> None:
    first = await ask(impl, ledger, "One?", tools=[TOOL], instructions="i" * 400)
    second = await ask(impl, ledger, "Two?", tools=[TOOL], instructions="i" * 400, previous_response_id=first["id"])
    *before, _ = ledger.read
    asked = [key for keys in before for key in keys]
    assert [sorted({key[0] for key in keys}) for keys in before] == [["r"], ["n"], ["n"]]
    assert len(asked) == len(set(asked))
    assert (len(ledger.read), len(ledger.written)) == (4, 1)
    assert second["previous_response_id"] == first["id"]
