"""What a view reads in addition to the responses that it shows: opened summaries, and requests for approval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from ...core.errors import ApiError
from ...core.owner import Owner
from ...core.types import Json
from ...inputs.history import Hold
from ...items.compaction import Summary
from ...items.kinds.compaction import COMPACTION
from ...items.registry import REPLIES
from ...sealing.sealed_items import Opened, SealedItems
from ...sealing.sealer import SEALED, Sealer
from ...store.archive import Archive
from ...store.codec import TooLarge
from ...store.read_allowance import ReadAllowance

ADDED_BYTES: Final = 4 * 2**20
"""Maximum size of added items of one kind: summaries (decompressed) and requests for approval. Others are left out."""

ADDED_ITEMS: Final = 64
"""Maximum number of added items of one kind."""

_REPLIES: Final = {name: reply.names for name, reply in REPLIES.items() if reply.waits_for == "approval"}
"""The field in which an answer names its request, by the type of the answer."""
_REQUESTS: Final = frozenset(REPLIES[name].to for name in _REPLIES)


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


async def answered_requests(
    archive: Archive,
    items: Sequence[Json],
    viewer: Owner,
    hold: Hold | None = None,
    *,
    added_bytes: int = ADDED_BYTES,
) -> Mapping[str, Json]:
    """Return the requests for approval that are answered among `items`, by their ids.

    A request that is not among them is read if it is the viewer's; otherwise it is left out.

    Args:
        archive: has the requests.
        items: items of responses or of a conversation.
        viewer: the user who reads them.
        hold: called with the number of bytes that are about to be held; it may raise.
        added_bytes: maximum bytes that are read; beyond that, no request is added.
    """
    answered = {str(item.get(_REPLIES[item["type"]])) for item in items if item["type"] in _REPLIES}
    requests = [item for item in items if item["type"] in _REQUESTS]
    by_id = {str(item.get("id")): item for item in requests if item.get("id") in answered}
    missing = list(islice(sorted(answered - by_id.keys()), ADDED_ITEMS))
    stored = archive.find_items(viewer, missing, ReadAllowance(added_bytes, hold))
    try:
        return by_id | {each: item async for each, item in stored if item["type"] in _REQUESTS}
    except TooLarge:
        return by_id
