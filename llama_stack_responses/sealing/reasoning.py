"""Private reasoning: it travels with the client, sealed, and comes back to the model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..core.owner import Owner
from ..core.thoughts import Thought, decoded, encoded, plain_thoughts
from ..logs import get_logger
from .sealer import SEALED, SECRET_BYTES, Sealer, Unopened, check_seals

Json = dict[str, Any]
logger = get_logger(__name__)

_PURPOSE: Final = "reasoning"


def reasoning_sealer(sealer: Sealer) -> Sealer:
    """What seals reasoning: the sealer itself, or one with a secret of this process where it has none."""
    if sealer.ready:
        return sealer
    logger.warning(
        "No 'secrets' are configured: the encrypted_content of reasoning items can be read by this process only, and "
        "clients that send it to another one, or after a restart, get an error."
    )
    return Sealer([os.urandom(SECRET_BYTES)])


@dataclass(frozen=True, slots=True)
class PrivateReasoning:
    """Seals the reasoning of one user's models, and reads it again."""

    sealer: Sealer
    owner: Owner

    def seal(self, thoughts: Sequence[Thought]) -> str:
        """An item's `encrypted_content`."""
        return self.sealer.seal(encoded(thoughts), purpose=_PURPOSE, owner=self.owner)

    def read(self, item: Json) -> list[Thought]:
        """What a reasoning item holds; where its seal can no longer be opened, what it shows."""
        if seal := item.get(SEALED):
            try:
                return self._open(seal)
            except Unopened:
                logger.info("the reasoning of %r is sealed with a secret that is gone", item.get("id"))
        return plain_thoughts(item)

    def check(self, items: Iterable[Json]) -> None:
        """A 400 unless all reasoning that a client sends was sealed for the user who sends it."""
        check_seals(items, "reasoning", self._open)

    def _open(self, seal: str) -> list[Thought]:
        return decoded(self.sealer.open(seal, purpose=_PURPOSE, owner=self.owner))
