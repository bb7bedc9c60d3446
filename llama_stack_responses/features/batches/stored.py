"""The batches of all users, for the commands that count, export and delete what is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ...core.owner import Owner
from ...store.content_names import Hasher
from ...store.decoder import Decoder
from ...store.feature_store import Exported
from ...store.records import Records
from .objects import batch_object
from .rows import BATCHES
from .stored_batches import StoredBatches, no_batch


class BatchesOfOwners:
    """The batches in a store, as a `FeatureStore`.

    Args:
        records: the store.
    """

    name = "batches"
    prefix = BATCHES

    def __init__(self, records: Records) -> None:
        self._batches = StoredBatches(records)

    async def ids_of(self, owner: Owner) -> AsyncIterator[str]:
        """Yield the ids of an owner's batches, oldest first."""
        for each in await self._batches.every(Hasher(owner).owner):
            yield each.id

    async def export(self, owner: Owner) -> AsyncIterator[Exported]:
        """Yield an owner's batches, oldest first. Their files are the host's."""
        for each in await self._batches.every(Hasher(owner).owner):
            fields = batch_object(each)
            del fields["object"]
            yield Exported("batch", each.owner, fields, "lines")

    async def delete(self, owner: Owner, object_id: str) -> None:
        """Delete a batch with the rows of its lines, whose responses are deleted as all others are.

        Raises:
            ApiError: 404, the owner has none with this id.
        """
        of = Hasher(owner).owner
        if await self._batches.find(of, object_id) is None:
            raise no_batch(object_id)
        await self._batches.delete(of, object_id)

    async def forget(self, owner: Owner) -> None:
        """Delete what is kept of an owner beside their batches."""
        await self._batches.forget(Hasher(owner).owner)


def open_store(records: Records, _: Decoder) -> BatchesOfOwners:
    """Return the batches in a store."""
    return BatchesOfOwners(records)
