"""Finds the requests for approval that a user has answered, so that an answer can name its call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from ...core.owner import Owner
from ...core.types import Json
from ...inputs.history import Hold
from ...items.registry import REPLIES
from ...store.archive import Archive
from ...store.codec import TooLarge
from ...store.read_allowance import ReadAllowance
from .view_limits import ADDED_BYTES, ADDED_ITEMS

_REPLIES: Final = {name: reply.names for name, reply in REPLIES.items() if reply.waits_for == "approval"}
"""The field in which an answer names its request, by the type of the answer."""
_REQUESTS: Final = frozenset(REPLIES[name].to for name in _REPLIES)


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
