"""PostgreSQL records without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.postgres import PostgresRecords
from llama_stack_responses.store.postgres_errors import errors_as_503
from llama_stack_responses.store.postgres_layout_1 import LayoutChange
from llama_stack_responses.store.postgres_tables import State
from llama_stack_responses.store.records import Put
from tests.support.clock import LoopClock


async def test_commit_that_waits_for_locks_when_the_store_closes_does_not_open_it_again() -> None:
    records = PostgresRecords("postgresql://missing@127.0.0.1:1/none", connections=1)
    async with records._connections.locks.hold(records._connections.locks.total):
        commit = asyncio.create_task(records.commit([Put("k", b"")]))
        await asyncio.sleep(0)
        await records.close()
    with pytest.raises(ApiError, match="is closed"):
        await commit


@pytest.mark.parametrize(
    "error", [asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError, asyncpg.UndefinedFunctionError]
)
def test_error_of_a_dropped_schema_names_the_remedy(error: type[asyncpg.PostgresError]) -> None:
    with (
        pytest.raises(ApiError, match="no longer in its database: restore it, or restart the servers"),
        errors_as_503(),
    ):
        raise error


async def test_only_calls_in_the_first_seconds_of_a_change_of_the_layout_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, never = LoopClock(monkeypatch), asyncio.Event()

    @asynccontextmanager
    async def connect() -> AsyncIterator[None]:
        await never.wait()
        yield

    async def state(_: object) -> State:
        raise AssertionError("there is no connection")

    change = LayoutChange(connect, str, state)
    early = asyncio.create_task(change.made())
    await clock.passes(0.0)
    assert not early.done()
    await clock.passes_until(early.done)
    late = asyncio.create_task(change.made())
    await clock.passes(0.0)
    assert late.done()
    for each in (early, late):
        with pytest.raises(ApiError, match="being changed to the layout of this version") as error:
            await each
        assert (error.value.status, error.value.retry_after) == (503, 5)
    await change.close()
