"""Limits on what runs: background responses of a user, team or key, and responses that end when a quota is used up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.feature import Stack
from llama_stack_responses.features.usage.limits.on_demand import LimitsOnDemand
from llama_stack_responses.features.usage.settings import Limit, Price, Usage
from llama_stack_responses.generation.activity import Activity
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Records
from llama_stack_responses.telemetry.instrumentation import Telemetry
from tests.support.inference import FakeInference, finish, text
from tests.support.waiting import until
from tests.unit.service.test_running_share import SwitchedAccess
from tests.unit.service.test_short_requests import server

type Json = dict[str, Any]

ADA = Owner("ada", {"teams": ["search"], "keys": ["key_1"]})
BOB = Owner("bob", {"teams": ["search"], "keys": ["key_2"]})
EVE = Owner("eve", {"teams": ["sales"], "keys": ["key_3"]})
KEYED = Owner("ada", {"keys": ["key_4"], "limits": ["background=1"]})


class Limited:
    """A server with limits.

    Attributes:
        impl: the server.
        access: sets the user.
        go: lets the model end its answers.
    """

    def __init__(self, records: Records, *limits: Limit, words: int = 1) -> None:
        stack = SimpleNamespace(records=records, telemetry=Telemetry(), config=ResponsesConfig(), activity=Activity())
        self.limits = LimitsOnDemand(cast("Stack", stack), Usage(limits=list(limits), prices=[Price(output=1e6)]))
        self.access, self.go = SwitchedAccess(), asyncio.Event()
        answer: list[Any] = [*([text("word ")] * words), self.go, finish(tokens=words)]
        self.impl: OpenAIResponsesImpl = server(
            records,
            FakeInference(*[answer] * 20),
            self.access,
            admit=self.limits.admit,
            admit_items=self.limits.admit_items,
            at_end=[self.limits.ended_ops],
            on_end=[self.limits.count],
            activity=stack.activity,
        )

    async def create(self, owner: Owner = ADA, **fields: Any) -> Any:
        self.access.owner = owner
        return await self.impl.create({"model": "m", "input": "Hi", **fields})

    async def refused(self, owner: Owner = ADA, **fields: Any) -> ApiError:
        with pytest.raises(ApiError) as refused:
            await self.create(owner, **fields)
        return refused.value

    async def queue(self, owner: Owner = ADA) -> str:
        """Return the id of a new background response."""
        return str((await self.create(owner, background=True)).response["id"])

    async def ended(self, response_id: str, owner: Owner = ADA) -> Json:
        """Return a background response once it has ended."""
        self.access.owner = owner

        for pause in repeat(0.005):
            found: Json = await self.impl.reader.retrieve(response_id)
            if found["status"] not in ("queued", "in_progress"):
                return found
            await asyncio.sleep(pause)
        raise AssertionError

    async def settle(self) -> None:
        """Do what the server does each second."""
        limiter = self.limits._limiter
        assert limiter
        await limiter.settle()

    async def stop(self) -> None:
        self.go.set()
        await self.impl.shutdown()
        await self.limits.stop()


@asynccontextmanager
async def limited(*limits: Limit, words: int = 1, records: MemoryRecords | None = None) -> AsyncIterator[Limited]:
    made = Limited(records or MemoryRecords(), *limits, words=words)
    made.limits.start()
    yield made
    await made.stop()


@pytest.mark.parametrize(
    ("limits", "owner", "same", "other"),
    [
        ([Limit(by="team", background=1)], ADA, BOB, EVE),
        ([Limit(by="key", background=1)], ADA, ADA, BOB),
        ([Limit(background=1)], ADA, ADA, BOB),
        ([], KEYED, KEYED, ADA),
    ],
    ids=["team", "key", "user", "own limit of a key"],
)
async def test_background_responses_are_limited_on_all_servers_until_they_end(
    limits: list[Limit], owner: Owner, same: Owner, other: Owner
) -> None:
    records = MemoryRecords()
    async with limited(*limits, records=records) as server, limited(*limits, records=records) as another:
        first = await server.queue(owner)
        for each in (server, another):
            error = await each.refused(same, background=True)
            assert (error.status, error.code, error.retry_after) == (429, "rate_limit_exceeded", 10)
        await another.queue(other)
        assert isinstance(await server.create(same), ForegroundRun)
        server.go.set()
        another.go.set()
        await server.ended(first, owner)
        await server.ended(await another.queue(same), same)


@pytest.mark.parametrize("act", ["cancel", "delete"])
async def test_cancelled_or_deleted_background_response_counts_no_longer(act: str) -> None:
    async with limited(Limit(by="team", background=1)) as server:
        first = await server.queue()
        await server.refused(BOB, background=True)
        server.access.owner = ADA
        await getattr(server.impl, act)(first)
        await server.queue(BOB)


async def test_background_limit_that_is_not_enforced_warns(caplog: pytest.LogCaptureFixture) -> None:
    async with limited(Limit(name="trial", background=2, enforced=False)) as server:
        await server.queue()
        assert "limit nearly reached" not in caplog.text
        for _ in range(3):
            await server.queue()
        assert caplog.text.count("limit nearly reached: background of trial") == 1


QUOTAS = [
    Limit(tokens_per_day=50, cut_running=True),
    Limit(by="team", budget_per_month=50, cut_running=True),
]


@pytest.mark.parametrize("limit", QUOTAS, ids=["tokens", "costs"])
async def test_response_that_uses_up_a_quota_is_ended(limit: Limit) -> None:
    async with limited(limit, words=80) as server:
        run = await server.create(stream=True)
        await until_said(server, 80)
        await server.settle()
        events = [event async for event in events_of(run)]
        assert events[-1]["type"] == "response.failed"
        failed = events[-1]["response"]
        assert (failed["status"], failed["error"]["code"]) == ("failed", "rate_limit_exceeded")
        assert "The limit of" in failed["error"]["message"]
        assert failed["output"][0]["content"][0]["text"].startswith("word ")
        assert (run.error.status, run.error.code) == (429, "insufficient_quota")
        # What it had used counts.
        await server.settle()
        assert (await server.refused()).code == "insufficient_quota"


async def test_background_response_that_uses_up_a_quota_is_ended() -> None:
    async with limited(QUOTAS[0], words=80) as server:
        response_id = await server.queue()
        await until_said(server, 80)
        await server.settle()
        failed = await server.ended(response_id)
        assert (failed["status"], failed["error"]["code"]) == ("failed", "rate_limit_exceeded")
        await server.settle()
        assert (await server.refused(background=True)).code == "insufficient_quota"


async def test_use_on_another_server_ends_responses_too() -> None:
    records = MemoryRecords()
    async with limited(QUOTAS[0], records=records) as server, limited(QUOTAS[0], words=80, records=records) as another:
        run = await server.create()
        another.go.set()
        await (await another.create()).finish()
        await another.settle()
        await server.settle()
        with pytest.raises(ApiError) as ended:
            await run.finish()
        assert ended.value.code == "insufficient_quota"


@pytest.mark.parametrize(
    "limit",
    [Limit(tokens_per_day=50), Limit(tokens_per_day=50, cut_running=True, enforced=False)],
    ids=["not configured", "not enforced"],
)
async def test_response_goes_on_without_the_setting(limit: Limit) -> None:
    async with limited(limit, words=80) as server:
        run = await server.create()
        await until_said(server, 80)
        await server.settle()
        server.go.set()
        assert (await run.finish())["status"] == "completed"


async def until_said(server: Limited, words: int) -> None:
    """Wait until the model has said so many words."""
    running = server.limits._stack.activity.running

    await until(lambda: any(each.used.output_tokens >= words for own in running.values() for each in own.values()))


async def events_of(run: ForegroundRun) -> AsyncIterator[Json]:
    """Yield the events of a streamed response."""
    while (events := await run.event_buffer.get(60)) is not None:
        for event in events:
            yield event


@pytest.mark.parametrize("stored", [True, False])
async def test_client_that_disconnects_before_the_end_has_used_what_it_read(stored: bool) -> None:
    async with limited(Limit(tokens_per_day=50), words=80) as server:
        run = await server.create(stream=True, store=stored)
        await until_said(server, 80)
        run.abandon()
        await run.wait_ended()
        assert (await server.refused()).code == "insufficient_quota"


async def test_compaction_is_limited_and_counts() -> None:
    async with limited(Limit(tokens_per_day=50), words=80) as server:
        server.go.set()
        compact = partial(server.impl.compaction.compact, {"model": "m", "input": "Hi"})
        await compact()
        with pytest.raises(ApiError) as refused:
            await compact()
        assert refused.value.code == "insufficient_quota"
        assert (await server.refused()).code == "insufficient_quota"
