"""Opens the summaries that stand for the beginning of a conversation, for the user who reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from ...core.errors import ApiError
from ...core.owner import Owner
from ...core.types import Json
from ...inputs.history import Hold
from ...items.compaction import Summary
from ...items.kinds.compaction import COMPACTION
from ...sealing.sealed_items import Opened, SealedItems
from ...sealing.sealer import SEALED, Sealer
from .view_limits import ADDED_BYTES, ADDED_ITEMS


class Summaries:
    """Opens sealed summaries.

    Args:
        sealer: opens them.
    """

    def __init__(self, sealer: Sealer) -> None:
        self._sealed = SealedItems(sealer, ADDED_BYTES)

    async def of(self, items: Iterable[Json], viewer: Owner, hold: Hold | None = None) -> Mapping[str, str]:
        """Return the texts of the summaries among `items`, by their seals.

        A summary that was sealed for another user than the viewer, or with a secret that is gone, is left out.

        Args:
            items: items of responses or of a conversation.
            viewer: the user who reads them.
            hold: called with the number of bytes that are about to be held; it may raise.
        """
        sealed = list(islice((item for item in items if item["type"] == COMPACTION and item.get(SEALED)), ADDED_ITEMS))
        opened = Opened()
        try:
            await self._sealed.open(sealed, viewer, opened, verify=False, hold=hold)
        except ApiError as error:
            if error.status != 400:  # they are too large
                raise
        content = opened.content.items()
        return {seal: summary.text for (_, seal), summary in content if isinstance(summary, Summary)}
