"""Sealed reasoning: the client keeps it encrypted, and sends it back for the model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..core.owner import Owner
from ..core.thoughts import Thought, decoded, encoded, plain_thoughts
from ..logs import get_logger
from .sealer import SEALED, SECRET_BYTES, Sealer, Unopened

Json = dict[str, Any]
logger = get_logger(__name__)

_PURPOSE: Final = "reasoning"


def reasoning_sealer(sealer: Sealer) -> Sealer:
    """Return the sealer for reasoning: the given one, or one with a random secret of this process if that has none."""
    if sealer.ready:
        return sealer
    logger.warning(
        "No 'secrets' are configured: the encrypted_content of reasoning items can be read by this process only, and "
        "clients that send it to another one, or after a restart, get an error."
    )
    return Sealer([os.urandom(SECRET_BYTES)])


@dataclass(frozen=True, slots=True)
class PrivateReasoning:
    """Seals and reads the reasoning of one user's models."""

    sealer: Sealer
    owner: Owner

    def seal(self, thoughts: Sequence[Thought]) -> str:
        """Return an item's `encrypted_content`."""
        return self.sealer.seal(encoded(thoughts), purpose=_PURPOSE, owner=self.owner)

    def read(self, item: Json) -> list[Thought]:
        """Return the content of a reasoning item; its visible reasoning if the seal does not open."""
        if seal := item.get(SEALED):
            try:
                return self._open(seal)
            except Unopened:
                logger.info("could not open the sealed reasoning of %r: its secret is not configured", item.get("id"))
        return plain_thoughts(item)

    def _open(self, seal: str) -> list[Thought]:
        return decoded(self.sealer.open(seal, purpose=_PURPOSE, owner=self.owner))
