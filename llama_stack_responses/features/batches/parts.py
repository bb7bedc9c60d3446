"""What the work for batches needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from ...concurrency.fair_budget import FairBudget
from ...concurrency.share import ShareOf
from ...core.types import Json
from ...feature import PlainInference
from ...inputs.large_files import LargeFiles
from ...jobs.served_partitions import WatchedRows
from ...sealing.sealer import Sealer
from ...service.idempotency import IdempotencyKeys
from ...service.responses import OpenAIResponsesImpl
from ...telemetry.instrumentation import Telemetry
from .ends import Tries
from .model_slots import ModelSlots
from .output import Output
from .rows import Batch
from .settings import Batches
from .stored_batches import StoredBatches

_PURPOSE: Final = "batch keys"


@dataclass(frozen=True, slots=True)
class Parts:
    """What the work for batches needs.

    Attributes:
        impl: runs the responses.
        inference: answers requests for other endpoints.
        slots: how many of these run at a time; users take turns.
        model_slots: how many of these run at a time of one model.
        memory: bytes that lines which begin, or are asked for, may take; users take turns.
        batches: the batches.
        places: the partitions of the store in which there may be work to do.
        keys: the Idempotency-Keys of their requests.
        files: the file store.
        sealer: seals and opens the credentials of users.
        settings: the settings.
        share_of: returns the share of a user.
        telemetry: records metrics.
    """

    impl: OpenAIResponsesImpl
    inference: PlainInference
    slots: FairBudget
    model_slots: ModelSlots
    memory: FairBudget
    batches: StoredBatches
    places: WatchedRows
    keys: IdempotencyKeys
    files: LargeFiles
    sealer: Sealer
    settings: Batches
    share_of: ShareOf
    telemetry: Telemetry

    @property
    def tries(self) -> Tries:
        """How often a line is tried."""
        return Tries(self.settings.tries, self.settings.retry_seconds)

    @property
    def output(self) -> Output:
        """Writes the files."""
        return Output(self.batches, self.files, self._load)

    def seal_keys(self, keys: Mapping[str, Any], batch: Batch) -> str:
        """Return the credentials of a batch's owner, sealed."""
        return self.sealer.seal(orjson.dumps(dict(keys)), purpose=_PURPOSE, owner=batch.owner, about=batch.id)

    async def keys_of(self, batch: Batch) -> Json:
        """Return the credentials of a batch's owner.

        Raises:
            Unopened: they cannot be decrypted.
            ApiError: 503, the store does not answer.
        """
        if batch.sealed is None:
            return {}
        await self.sealer.load()
        opened: Json = orjson.loads(self.sealer.open(batch.sealed, purpose=_PURPOSE, owner=batch.owner, about=batch.id))
        return opened

    async def forget(self, response_id: str) -> None:
        """Delete a response that is not to be kept."""
        if await self.impl.archive.delete(response_id):
            await self.impl.jobs.forget(response_id)

    async def _load(self, response_id: str) -> Json | None:
        stored = await self.impl.archive.load(response_id, expired=True)
        return stored.response if stored else None
