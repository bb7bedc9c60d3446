"""Sealed summaries of conversations: the client keeps them encrypted, and sends them back for the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.compaction import Summary
from ..core.owner import Owner
from ..core.schema.items import COMPACTION
from ..logs import get_logger
from .sealer import SEALED, Sealer, Unopened

Json = dict[str, Any]
logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PrivateSummaries:
    """Seals and reads the summaries of one user's conversations."""

    sealer: Sealer
    owner: Owner

    def seal(self, summary: Summary) -> str:
        """Return an item's `encrypted_content`."""
        return self.sealer.seal(summary.encode(), purpose=COMPACTION, owner=self.owner)

    def read(self, item: Json) -> Summary | None:
        """Return the content of a compaction item; None if the item is incomplete, or its seal does not open."""
        try:
            return self._open(item[SEALED]) if item[SEALED] else None
        except Unopened:
            logger.info("could not open the sealed summary of %r: its secret is not configured", item.get("id"))
            return None

    def _open(self, seal: str) -> Summary:
        return Summary.decode(self.sealer.open(seal, purpose=COMPACTION, owner=self.owner))
