"""Reads the responses in the table of the host's builtin provider, to import them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from ..service.response_import import FoundResponse
from .import_conversations import owner_of, unreadable
from .platform import ResponsesStore, ResponsesStoreReference

_ROWS_PER_READ: Final = 50
"""Rows that are read together. llama-stack writes a response's whole history into its row."""


@asynccontextmanager
async def stored_responses(reference: ResponsesStoreReference) -> AsyncIterator[StoredResponses]:
    """Open the responses of every user, without the host's access policy.

    Raises:
        ImportImpossible: the database cannot be read.
    """
    store = ResponsesStore(reference, [])
    try:
        # Creates and migrates the table, as the builtin provider does when it starts.
        await store.initialize()
    except Exception as error:
        raise unreadable("responses", error) from error
    tables = store.sql_store.sql_store
    try:
        yield StoredResponses(tables, reference.table_name)
    finally:
        await tables.shutdown()


class StoredResponses:
    """The rows of the table, in the form that an import takes."""

    def __init__(self, tables: Any, name: str) -> None:
        self._tables = tables
        self._name = name

    async def pages(self) -> AsyncGenerator[Sequence[FoundResponse]]:
        """Yield all responses in pages, oldest first."""
        after: dict[str, Any] = {}
        where = "created_at > :at OR (created_at = :at AND id > :id)"
        while True:
            behind = {"where_sql": where, "where_sql_params": after} if after else {}
            order = [("created_at", "asc"), ("id", "asc")]
            try:
                page = await self._tables.fetch_all(self._name, order_by=order, limit=_ROWS_PER_READ, **behind)
            except Exception as error:
                raise unreadable("responses", error) from error
            if not page.data:
                return
            after = {"at": page.data[-1]["created_at"], "id": page.data[-1]["id"]}
            yield [_response(row) for row in page.data]

    async def find(self, response_id: str) -> FoundResponse | None:
        """Return the response with this id, or None."""
        try:
            row = await self._tables.fetch_one(self._name, where={"id": response_id})
        except Exception as error:
            raise unreadable("responses", error) from error
        return _response(row) if row else None


def _response(row: dict[str, Any]) -> FoundResponse:
    stored = row["response_object"]
    body = stored if isinstance(stored, dict) else {}
    inputs, above = body.get("input"), row.get("previous_response_id")
    # OGX may store only the new items of a turn. All other rows have the whole history in `input`.
    continues = above if row.get("input_storage_mode") == "incremental" else None
    return FoundResponse(
        row["id"],
        owner_of(row),
        row["created_at"],
        body,
        inputs if isinstance(inputs, list) else [],
        continues,
    )
