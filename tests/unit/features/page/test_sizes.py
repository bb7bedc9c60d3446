"""A view of a very large response, and a page of a long chain, take a bounded amount."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from threading import Event
from typing import Any, cast

import pytest

from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import not_found
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.page import response_views
from llama_stack_responses.features.page.chains import ChainViews
from llama_stack_responses.features.page.lists import Lists
from llama_stack_responses.features.page.refused.rows import RefusedRequests
from llama_stack_responses.features.page.response_views import Views
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store import codec
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.saving import Recording
from tests.contract.conversations import Json, assistant, new_id, response, user
from tests.support.shares import as_user
from tests.support.waiting import until

ADA = Owner("ada")


class Access:
    """The access of one user."""

    def current_user(self) -> Owner:
        return ADA

    def allows(self, *_: Any) -> bool:
        return True


class Impl:
    """What the views ask of the implementation."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool
        self.sealer = Sealer([])
        self.config = ResponsesConfig()
        self.access = Access()
        self.archive = Archive(MemoryRecords(max_bytes=2**30, max_records=10**6), retention=None)
        self.large_work = LargeWork()
        self.jobs = self.reader = self
        self.reads = 0

    async def find(self, response_id: str, *_: Any) -> Any:
        self.reads += 1
        found = await self.archive.load(response_id)
        if found is None:
            raise not_found(response_id)
        return found

    async def find_many(self, _: Any) -> Json:
        return {}


@pytest.fixture
async def impl() -> AsyncIterator[Impl]:
    pool = WorkerPool(PoolLimits())
    created = Impl(pool)
    yield created
    created.large_work.close()
    await pool.close()


def views(impl: Impl) -> tuple[Views, ChainViews]:
    whole = cast("OpenAIResponsesImpl", impl)
    lists = Lists(impl.archive, whole.jobs, RefusedRequests(MemoryRecords()))
    created = Views(whole, lists, render_seconds=60)  # a busy machine needs longer
    return created, ChainViews(whole, created)


async def save(impl: Impl, *output: Json, previous: str | None = None) -> str:
    created = response(*output, id=new_id("resp"), previous_response_id=previous)
    base = await impl.archive.load(previous) if previous else None
    history = base.history if base else None
    await impl.archive.save(created, owner=ADA, base=history, input_items=[user("Why?")])
    response_id: str = created["id"]
    return response_id


@pytest.mark.extended
async def test_view_of_ten_megabytes_is_bounded(impl: Impl) -> None:
    created = await save(impl, *[assistant("word **bold** " * 7000) for _ in range(110)])
    view = await views(impl)[0].response(created)
    assert len(json.dumps(view)) < 12_000_000
    assert view["items"][1]["blocks"][0]["kind"] == "markdown"
    assert view["items"][-1]["blocks"][0] == {"kind": "text", "text": "", "truncated": True}


async def test_page_of_a_long_chain_reads_only_its_turns(impl: Impl) -> None:
    last = None
    for number in range(300):
        last = await save(impl, assistant(f"Because {number}."), previous=last)
    assert last is not None
    impl.reads = 0
    page = await views(impl)[1].page(last, None, 20)
    assert (len(page["data"]), page["has_more"]) == (20, True)
    assert impl.reads <= 21


async def test_page_of_recorded_requests_ends_once_it_is_large(impl: Impl) -> None:
    created = response(assistant("Because."), id=new_id("resp"))
    requests = [codec.encode({"round": number, "request": "word " * 600_000}) for number in range(12)]
    await impl.archive.save(
        created, owner=ADA, base=None, input_items=[user("Why?")], recording=Recording(requests=requests)
    )
    held: list[int] = []
    page = await views(impl)[0].requests(created["id"], -1, 20, held.append)
    assert ([each["round"] for each in page["data"]], page["has_more"], page["next"]) == ([0, 1], True, 1)
    assert 6_000_000 < sum(held) < 7_000_000
    rest: list[int] = []
    while page["has_more"]:
        page = await views(impl)[0].requests(created["id"], page["next"], 20)
        rest += [each["round"] for each in page["data"]]
    assert rest == list(range(2, 12))


async def test_pages_of_events_of_one_user_take_one_thread(impl: Impl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take seconds of a thread, of which a server has few."""
    created = await save(impl, assistant("Because."))
    entered, may_end = list[int](), Event()

    def slow(*_: Any) -> Json:
        entered.append(1)
        assert may_end.wait(60)
        return {"data": len(entered)}

    monkeypatch.setattr(response_views, "_events", slow)
    asking = [as_user(ADA.identity, views(impl)[0].events(created, -1, 10)) for _ in range(40)]
    try:
        await until(lambda: bool(entered))
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "served"), 30) == "served"
        assert len(entered) == 1
    finally:
        may_end.set()
    assert sorted(each["data"] for each in await asyncio.gather(*asking)) == list(range(1, 41))
