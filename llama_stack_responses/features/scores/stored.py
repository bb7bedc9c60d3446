"""The scores of all users' responses, for the commands that count, export and delete what is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ...core.errors import not_found
from ...core.owner import Owner
from ...store.decoder import Decoder
from ...store.feature_store import Exported
from ...store.layout import SCORES, Entry
from ...store.records import Records
from ...store.scores import Scores


class ScoresOfOwners:
    """The scores in a store, as a `FeatureStore`.

    Args:
        records: the store.
        decoder: decodes the records of responses.
    """

    name = "scores"
    prefix = SCORES

    def __init__(self, records: Records, decoder: Decoder) -> None:
        self._records, self._decoder = records, decoder
        self._scores = Scores(records)

    async def ids_of(self, owner: Owner) -> AsyncIterator[str]:
        """Yield the ids of an owner's responses that have a score, oldest first."""
        async for response_id, _ in self._scores.every(owner):
            yield response_id

    async def export(self, owner: Owner) -> AsyncIterator[Exported]:
        """Yield the scores of an owner's responses, oldest first."""
        async for response_id, score in self._scores.every(owner):
            yield Exported("score", owner, {"response_id": response_id, **score.fields()}, "items")

    async def delete(self, owner: Owner, object_id: str) -> None:
        """Delete the score of a response.

        Raises:
            ApiError: 404, the owner has no such response: its score was deleted with it.
        """
        key = f"r/{object_id}"
        record = (await self._records.get_many([key])).get(key)
        entry = Entry.from_stored(*await self._decoder.decode([record.value])) if record else None
        if entry is None or entry.owner.identity != owner.identity:
            raise not_found(object_id)
        await self._scores.delete(entry)

    async def forget(self, owner: Owner) -> None:
        """Do nothing: a response has no more than one score."""


def open_store(records: Records, decoder: Decoder) -> ScoresOfOwners:
    """Return the scores in a store."""
    return ScoresOfOwners(records, decoder)
