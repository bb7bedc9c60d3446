"""PostgreSQL records without a server."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.postgres import PostgresRecords
from llama_stack_responses.store.postgres_errors import errors_as_503
from llama_stack_responses.store.records import Put


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
