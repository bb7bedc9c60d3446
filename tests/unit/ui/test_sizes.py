"""A view of a very large response, and a page of a long chain, take a bounded amount."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import not_found
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.ui.chains import ChainViews
from llama_stack_responses.ui.lists import Lists
from llama_stack_responses.ui.responses import Views
from tests.contract.conversations import Json, assistant, new_id, response, user

ADA = Owner("ada")


class Access:
    """The access of one user."""

    def who(self) -> Owner:
        return ADA

    def allows(self, *_: Any) -> bool:
        return True


class Impl:
    """What the views ask of the implementation."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool
        self.config = ResponsesConfig()
        self.access = Access()
        self.archive = Archive(MemoryRecords(max_bytes=2**30, max_records=10**6), retention=None)
        self.jobs = self
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
    yield Impl(pool)
    await pool.close()


def views(impl: Impl) -> tuple[Views, ChainViews]:
    whole = cast("OpenAIResponsesImpl", impl)
    made = Views(whole)
    return made, ChainViews(whole, made, Lists(impl.archive, whole.jobs))


async def save(impl: Impl, *output: Json, previous: str | None = None) -> str:
    made = response(*output, id=new_id("resp"), previous_response_id=previous)
    base = await impl.archive.load(previous) if previous else None
    history = base.history if base else None
    await impl.archive.save(made, owner=ADA, base=history, input_items=[user("Why?")])
    response_id: str = made["id"]
    return response_id


async def test_view_of_ten_megabytes_is_bounded(impl: Impl) -> None:
    made = await save(impl, *[assistant("word **bold** " * 7000) for _ in range(110)])
    view = await views(impl)[0].response(made)
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
