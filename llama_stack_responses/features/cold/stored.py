"""The packed chains of all users, for the commands that count what is stored, and for what users may store."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ...core.errors import ApiError
from ...core.owner import Owner
from ...store.decoder import Decoder
from ...store.feature_store import Exported
from ...store.records import Records, pages_of, unmoved
from .pages import PagedRecords
from .prefixes import CHAINS
from .rows import Chain


class PackedChains:
    """The packed chains in a store, as a `FeatureStore`.

    Their responses are exported and deleted as all others are, so there is nothing to export or to delete here.

    Args:
        records: the store.
    """

    name = "packed chains"
    prefix = CHAINS

    def __init__(self, records: Records) -> None:
        self._records = PagedRecords(unmoved(records))

    async def ids_of(self, owner: Owner) -> AsyncIterator[str]:
        """Yield nothing."""
        del owner
        for each in list[str]():
            yield each

    async def export(self, owner: Owner) -> AsyncIterator[Exported]:
        """Yield nothing."""
        del owner
        for each in list[Exported]():
            yield each

    async def delete(self, owner: Owner, object_id: str) -> None:
        """Refuse.

        Raises:
            ApiError: 404, a chain is deleted with its responses.
        """
        del owner
        raise ApiError(404, f"There is no packed chain {object_id!r}: delete its responses.")

    async def forget(self, owner: Owner) -> None:
        """Do nothing: the last of an owner's responses deletes the chain."""

    async def sizes(self) -> AsyncIterator[tuple[Owner, int]]:
        """Yield the owner of each chain, and the bytes that it takes in the store and in the object store."""
        async for page in pages_of(self._records, CHAINS):
            for key, record in page:
                chain = Chain.decode(record)
                yield chain.owner, len(key) + len(record.value) + chain.total


def open_store(records: Records, _: Decoder) -> PackedChains:
    """Return the packed chains in a store."""
    return PackedChains(records)
