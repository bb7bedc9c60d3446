"""The refused requests of all users, for the commands that count, export and delete what is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ...core.owner import Owner
from ...store.decoder import Decoder
from ...store.feature_store import Exported
from ...store.records import Records
from ...store.search_index import index_of
from .refused.rows import FIELDS, PREFIX, RefusedRequests


class RefusedOfOwners:
    """The refused requests in a store, as a `FeatureStore`.

    Args:
        records: the store.
    """

    name = "refused requests"
    prefix = PREFIX

    def __init__(self, records: Records) -> None:
        self._records = records
        self._rows = RefusedRequests(records)
        self.delete = self._rows.delete

    async def ids_of(self, owner: Owner) -> AsyncIterator[str]:
        """Yield the ids of an owner's refused requests, oldest first."""
        async for row in self._rows.every(owner):
            yield row["id"]

    async def export(self, owner: Owner) -> AsyncIterator[Exported]:
        """Yield an owner's refused requests, oldest first."""
        async for row in self._rows.every(owner):
            yield Exported("refused_request", owner, {name: row[name] for name in FIELDS}, "items")

    async def forget(self, _: Owner) -> None:
        """Remove from the files of the store what the index of the search has left of words."""
        if index := index_of(self._records):
            await index.purge()


def open_store(records: Records, _: Decoder) -> RefusedOfOwners:
    """Return the refused requests in a store."""
    return RefusedOfOwners(records)
