"""Limits on stored bytes: what is refused, when a deletion counts, and what servers tell each other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.usage.settings import Limit
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.records import Records
from tests.contract.counting_proxy import CountingProxy
from tests.support.recounts import recount
from tests.unit.features.usage.test_running_limits import ADA, BOB, EVE, Limited

LONG = "word " * 2000
KEYED = Owner("ada", {"keys": ["key_4"], "limits": ["stored_bytes=5000"]})


@pytest.fixture
async def limited() -> AsyncIterator[Callable[..., Limited]]:
    """Return a function that opens a server with limits, which counts what is stored again only when a test does so."""
    opened: list[Limited] = []

    def open_server(*limits: Limit, records: Records | None = None) -> Limited:
        server = Limited(records or MemoryRecords(), *limits)
        opened.append(server)
        if limits:
            server.limits._enforced()
        return server

    yield open_server
    for each in opened:
        await each.limits.stop()


async def respond(server: Limited, owner: Owner = ADA, **fields: Any) -> str:
    """Return the id of a response that has ended."""
    server.go.set()
    run = await server.create(owner, **fields)
    assert isinstance(run, ForegroundRun)
    return str((await run.finish())["id"])


async def settle(*servers: Limited) -> None:
    """Do what the servers do every few seconds."""
    for server in servers:
        limiter = server.limits._limiter
        assert limiter
        limiter._share_at = 0.0
        await limiter.settle()


@pytest.mark.parametrize(
    ("by", "others"), [("user", [BOB]), ("team", [EVE]), ("key", [BOB]), ("all", [])], ids=lambda each: str(each)[:5]
)
async def test_full_limit_refuses_what_would_be_stored_and_nothing_else(
    limited: Callable[..., Limited], by: Any, others: list[Owner]
) -> None:
    server = limited(Limit(by=by, stored_bytes=5000))
    await respond(server, input=LONG)
    refused = await server.refused()

    assert (refused.status, refused.code, refused.type) == (429, "insufficient_quota", "insufficient_quota")
    assert "'stored_bytes'" in str(refused)
    assert "5000 are allowed" in str(refused)
    assert "Delete responses" in str(refused)
    assert (await server.refused(background=True)).code == "insufficient_quota"
    await respond(server, store=False)
    for owner in others:
        await respond(server, owner)


@pytest.mark.parametrize("full", [True, False])
async def test_items_of_conversations_count_and_are_refused(limited: Callable[..., Limited], full: bool) -> None:
    server = limited(Limit(stored_bytes=5000))
    server.access.owner = ADA
    items = [{"role": "user", "content": LONG if full else "Hi"}]
    conversation_id = (await server.impl.conversations.create({"items": items}))["id"]
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: server.impl.conversations.add_items(conversation_id, {"items": items}),
        lambda: server.impl.conversations.create({}),
        lambda: respond(server),
    ]
    for call in calls:
        with pytest.raises(ApiError, match="'stored_bytes'") if full else nullcontext():
            await call()
    server.access.owner = BOB
    await server.impl.conversations.create({"items": items})


async def test_limit_of_a_key_counts_what_its_requests_store(limited: Callable[..., Limited]) -> None:
    server = limited()
    await respond(server, KEYED, input=LONG)
    assert (await server.refused(KEYED)).code == "insufficient_quota"
    await respond(server, ADA)


@pytest.mark.parametrize("partitions", [1, 8])
async def test_deletion_counts_after_the_recount(limited: Callable[..., Limited], partitions: int) -> None:
    records = MemoryRecords() if partitions == 1 else PartitionedRecords([MemoryRecords() for _ in range(partitions)])
    server = limited(Limit(stored_bytes=5000), records=records)
    stored = await respond(server, input=LONG)
    await settle(server)
    await server.impl.delete(stored)
    await server.refused()
    await recount(records)
    await server.refused()
    await settle(server)
    await respond(server)


async def test_servers_share_what_they_store_and_learn_what_others_have(limited: Callable[..., Limited]) -> None:
    records = MemoryRecords()
    servers = [limited(Limit(stored_bytes=25_000), records=records) for _ in range(2)]
    for server in servers:
        await respond(server, input=LONG)
    await respond(servers[0], input=LONG)
    await respond(servers[0])
    await settle(*servers, servers[0])
    for server in servers:
        await server.refused()


async def test_limits_of_one_user_count_what_is_stored_once(limited: Callable[..., Limited]) -> None:
    limits = [Limit(name=name, stored_bytes=15_000, match=match) for name, match in (("one", "*"), ("two", "a*"))]
    server = limited(*limits)
    await respond(server, input=LONG)
    await respond(server)


async def test_limit_warns_at_its_share_and_refuses_nothing_unless_enforced(
    limited: Callable[..., Limited], caplog: pytest.LogCaptureFixture
) -> None:
    server = limited(Limit(stored_bytes=5000, enforced=False, name="trial"))
    for _ in range(3):
        await respond(server, input=LONG)
    await server.limits.stop()

    assert caplog.text.count("limit nearly reached: stored_bytes of trial") == 1


async def test_requests_do_not_ask_the_store_what_is_stored(limited: Callable[..., Limited]) -> None:
    counting = CountingProxy(MemoryRecords())
    server = limited(Limit(stored_bytes=10**9), records=counting)
    limiter = server.limits._enforced()
    await limiter._stored.of("ub/1")
    before = counting.reads + counting.commits
    for _ in range(100):
        limiter._stored.add("ub/1", LONG)
        await limiter._stored.of("ub/1")
    assert counting.reads + counting.commits == before
    await limiter._stored.settle()
    assert counting.reads + counting.commits == before + 2
