"""Sealed reasoning: the client keeps it encrypted, and sends it back for the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ..core.owner import Owner
from ..core.types import Json
from ..items.reasoning_segments import ReasoningSegment, decoded, encoded, plain_reasoning
from ..logs import get_logger
from .sealed_items import Opened
from .sealer import SEALED, Sealer, Unopened

logger = get_logger(__name__)

_PURPOSE: Final = "reasoning"


@dataclass(frozen=True, slots=True)
class PrivateReasoning:
    """Seals and reads the reasoning of one user's models.

    Attributes:
        sealer: seals it.
        owner: the user.
        opened: the items opened before.
    """

    sealer: Sealer
    owner: Owner
    opened: Opened = field(default_factory=Opened)

    def seal(self, segments: Sequence[ReasoningSegment]) -> str:
        """Return an item's `encrypted_content`."""
        seal = self.sealer.seal(encoded(segments), purpose=_PURPOSE, owner=self.owner)
        self.opened.content[_PURPOSE, seal] = list(segments)
        return seal

    def read(self, item: Json) -> list[ReasoningSegment]:
        """Return the content of a reasoning item; its visible reasoning if the seal does not open."""
        seal = item.get(SEALED)
        segments = self._open(seal) if seal else None
        if seal and segments is None:
            logger.info("could not open sealed reasoning, its secret is not configured: %r", item.get("id"))
        return plain_reasoning(item) if segments is None else segments

    def _open(self, seal: str) -> list[ReasoningSegment] | None:
        if (_PURPOSE, seal) in self.opened.content:
            known = self.opened.content[_PURPOSE, seal]
            return known if isinstance(known, list) else None
        try:
            return decoded(self.sealer.open(seal, purpose=_PURPOSE, owner=self.owner))
        except Unopened:
            return None
