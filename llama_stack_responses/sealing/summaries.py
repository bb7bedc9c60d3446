"""Summaries of conversations: they travel with the client, sealed, and come back to the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..core.compaction import Summary
from ..core.owner import Owner
from ..core.schema.items import COMPACTION
from ..logs import get_logger
from .sealer import SEALED, Sealer, Unopened, check_seals

Json = dict[str, Any]
logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PrivateSummaries:
    """Seals the summaries of one user's conversations, and reads them again."""

    sealer: Sealer
    owner: Owner

    def seal(self, summary: Summary) -> str:
        """An item's `encrypted_content`."""
        return self.sealer.seal(summary.encode(), purpose=COMPACTION, owner=self.owner)

    def read(self, item: Json) -> Summary | None:
        """What a compaction item holds; None if it was cut off, or its seal can no longer be opened."""
        try:
            return self._open(item[SEALED]) if item[SEALED] else None
        except Unopened:
            logger.info("the summary of %r is sealed with a secret that is gone", item.get("id"))
            return None

    def check(self, items: Iterable[Json]) -> None:
        """A 400 unless all summaries that a client sends were sealed for the user who sends them."""
        check_seals(items, COMPACTION, self._open)

    def _open(self, seal: str) -> Summary:
        return Summary.decode(self.sealer.open(seal, purpose=COMPACTION, owner=self.owner))
