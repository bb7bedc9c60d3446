"""A chain of responses as one conversation, with its branches."""

from __future__ import annotations

from typing import Final

from ...core.errors import ApiError
from ...core.ids import check_response_id
from ...core.types import Json
from ...inputs.history import Hold
from ...service.responses import OpenAIResponsesImpl
from .response_views import Found, Views, as_stored

_PAGE_BYTES: Final = 8 * 2**20
"""Bytes of responses with which a page ends, as `codec.size` counts."""

_MAX_STEPS: Final = 1_000
"""Responses that are looked at on the way to the newest one of a branch."""

_CONTINUED: Final = frozenset(("completed", "incomplete"))


class ChainViews:
    """Reads chains of responses, for users who may read them.

    Args:
        impl: the responses.
        views: makes the turns.
    """

    def __init__(self, impl: OpenAIResponsesImpl, views: Views) -> None:
        self._impl = impl
        self._views = views

    async def newest(self, response_id: str) -> str:
        """Return the last response of the newest branch that continues a response, or the response itself.

        Responses that failed or were cancelled continue nothing, and are passed over.

        Raises:
            ApiError: 400, the id is none.
        """
        check_response_id(response_id, "response_id")
        for _ in range(_MAX_STEPS):
            children = [row for row in await self._views.branches(response_id) if row["status"] in _CONTINUED]
            if not children:
                break
            response_id = children[-1]["id"]
        return response_id

    async def page(self, response_id: str, after: str | None, limit: int, hold: Hold | None = None) -> Json:
        """Return the turns up to a response, newest first.

        Args:
            response_id: the last response of the chain.
            after: the response with which the page begins; None for `response_id`.
            limit: maximum number of turns.
            hold: called with the number of bytes that are about to be held; it may raise.

        Raises:
            ApiError: 404, the response is unknown, deleted, or another user's; 400, an id is none.
        """
        if after:
            check_response_id(after, "after")
        found, left = await self._walk(after or response_id, limit, hold)
        turns = await self._views.turns(found, hold)
        for turn, each in zip(turns, found, strict=True):
            previous = each.response["previous_response_id"]
            siblings = await self._views.branches(previous) if previous else []
            turn["branches"] = siblings if len(siblings) > 1 else []
        gone = left if left and not await self._is_there(left) else None
        following = left if gone is None else None
        return {
            "object": "list",
            "data": turns,
            "children": [] if after else await self._views.branches(response_id),
            "gone": gone,
            "has_more": following is not None,
            "next": following,
        }

    async def _walk(self, response_id: str, limit: int, hold: Hold | None) -> tuple[list[Found], str | None]:
        """Return at most `limit` responses of a chain, and the id of the one before them.

        Raises:
            ApiError: 404, the first response cannot be read.
        """
        responses = [await self._impl.reader.find(response_id, "read", hold)]
        size = as_stored(responses[0]).size
        while (
            (previous := responses[-1].response["previous_response_id"])
            and len(responses) < limit
            and size < _PAGE_BYTES
        ):
            try:
                responses.append(await self._impl.reader.find(previous, "read", hold))
            except ApiError as error:
                if error.status != 404:
                    raise
                break
            size += as_stored(responses[-1]).size
        return responses, previous

    async def _is_there(self, response_id: str) -> bool:
        entry = await self._impl.archive.entry(response_id)
        return entry is not None and self._impl.access.allows("read", "response", response_id, entry.owner)
