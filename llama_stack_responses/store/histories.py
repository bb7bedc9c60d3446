"""Read histories: whole, or their newest turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ..concurrency.offloading import in_thread_if_large
from ..core.errors import ApiError, bad_request
from ..core.types import Json
from . import item_ids
from .codec import TooLarge
from .conversation_store import ConversationStore
from .decoder import Decoder
from .history_nodes import Node, read_chain
from .layout import split_name
from .read_allowance import ReadAllowance
from .recent_history import RecentHistory
from .records import Records


class Histories:
    """Reads the items of histories.

    Args:
        records: the store.
        decoder: decodes the stored values.
        conversations: reads the conversations with which histories begin.
        recent_bytes: the most that `newest` reads of a history without another limit.
    """

    def __init__(self, records: Records, decoder: Decoder, conversations: ConversationStore, recent_bytes: int) -> None:
        self._records = records
        self._decoder = decoder
        self._conversations = conversations
        self._recent_bytes = recent_bytes
        self._recent = RecentHistory(records, decoder, conversations)

    async def whole(
        self, name: str | None, allowance: ReadAllowance | None = None, hold: Callable[[int], object] | None = None
    ) -> list[Json]:
        """Return all items of the history called `name`, oldest first.

        Each response adds at most two nodes. A history of n nodes takes at most ceil(log4(n)) + 1 round trips, and one
        more if it begins with a conversation.

        Args:
            allowance: limits what is read; None for no limit.
            hold: is called with the number of bytes that are about to be decoded, without an allowance; it may raise.

        Raises:
            ApiError: 400 `previous_response_not_found`, if part of it is gone.
            TooLarge: it exceeds `allowance`.
        """
        allowance = allowance or ReadAllowance(None, hold)
        items = await self.stored_items(name, allowance)
        if items is None:
            raise _history_gone()
        return await self._conversations.unfold(items, allowance)

    async def newest(
        self, name: str | None, allowance: ReadAllowance | None = None, hold: Callable[[int], object] | None = None
    ) -> list[Json]:
        """Return what `whole` returns; if that exceeds `allowance`, its instructions and newest turns that do not.

        Args:
            allowance: has a limit; None stands for `recent_bytes`.
            hold: as for `whole`.

        Raises:
            ApiError: as from `whole`.
            TooLarge: not even the newest turn is within the limit.
        """
        allowance = allowance or ReadAllowance(self._recent_bytes, hold)
        left = allowance.left
        try:
            return await self.whole(name, allowance)
        except TooLarge:
            allowance.left = left
        items = await self._recent.history(name, allowance) if name else []
        if items is None:
            raise _history_gone()
        return items

    async def newest_of_conversation(self, conversation_id: str, end: int, allowance: ReadAllowance) -> list[Json]:
        """Return the items of a conversation at positions before `end`, as `newest` returns those of a history."""
        left = allowance.left
        try:
            return await self._conversations.items(conversation_id, end, allowance)
        except TooLarge:
            allowance.left = left
        return await self._recent.conversation(conversation_id, end, allowance)

    async def stored_items(self, name: str | None, allowance: ReadAllowance | None = None) -> list[Json] | None:
        """Return the items of a history as they are stored; None if part of it is gone."""
        if name is None:
            return []
        end, behind, ids = split_name(name)
        # The history is read first: most have no separate ids.
        chain = await read_chain(self._records, self._decoder, end, allowance)
        own_id_chain = await read_chain(self._records, self._decoder, ids, allowance) if ids else ()
        if chain is None or own_id_chain is None:
            return None
        join = partial(_joined, chain, behind, own_id_chain)
        return await in_thread_if_large(join, [node.items for _, node in chain])


def _joined(chain: Sequence[tuple[str, Node]], behind: int, own_id_chain: Sequence[tuple[str, Node]]) -> list[Json]:
    """Return the items of the nodes without the last `behind`, with the ids that other nodes give them."""
    items = [item for _, node in chain for item in node.items]
    return item_ids.with_own_ids(items[: len(items) - behind], [node for _, node in own_id_chain])


def _history_gone() -> ApiError:
    message = "The history of the previous response is no longer stored."
    return bad_request(message, "previous_response_id", "previous_response_not_found")
