"""Sealed summaries of conversations: the client keeps them encrypted, and sends them back for the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..concurrency.offloading import in_thread_if_large
from ..core.owner import Owner
from ..core.types import Json
from ..items.compaction import Summary
from ..items.kinds.compaction import COMPACTION
from ..logs import get_logger
from .sealed_items import Opened
from .sealer import SEALED, Sealer, Unopened

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PrivateSummaries:
    """Seals and reads the summaries of one user's conversations.

    Attributes:
        sealer: seals them.
        owner: the user.
        opened: the items opened before.
    """

    sealer: Sealer
    owner: Owner
    opened: Opened = field(default_factory=Opened)

    async def sealed(self, summary: Summary) -> str:
        """Return an item's `encrypted_content`. A large summary is sealed in a thread."""
        seal = await in_thread_if_large(lambda: self.seal(summary), summary.text, summary.message)
        self.opened.content[COMPACTION, seal] = summary
        return seal

    def seal(self, summary: Summary) -> str:
        """Return an item's `encrypted_content`."""
        return self.sealer.seal(summary.encode(), purpose=COMPACTION, owner=self.owner)

    def read(self, item: Json) -> Summary | None:
        """Return the content of a compaction item; None if the item is incomplete, or its seal does not open."""
        seal = item[SEALED]
        summary = self._open(seal) if seal else None
        if seal and summary is None:
            logger.info("could not open a sealed summary, its secret is not configured: %r", item.get("id"))
        return summary

    def _open(self, seal: str) -> Summary | None:
        if (COMPACTION, seal) in self.opened.content:
            known = self.opened.content[COMPACTION, seal]
            return known if isinstance(known, Summary) else None
        try:
            return Summary.decode(self.sealer.open(seal, purpose=COMPACTION, owner=self.owner))
        except Unopened:
            return None
