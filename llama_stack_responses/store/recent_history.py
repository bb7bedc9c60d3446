"""Read the newest turns of a history that is too large to be read whole."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from ..core.types import Json
from ..items.truncation import opening_instructions, whole_turns
from .codec import TooLarge
from .conversation_store import ConversationStore, begins_with_stand_in, without_stand_in
from .decoder import Decoder
from .history_nodes import Node, read_chain, read_end
from .item_ids import end_of, with_own_ids
from .layout import split_name
from .newest_nodes import read_newest
from .read_allowance import PAGE_BYTES, ReadAllowance
from .records import Records

type Chain = Sequence[tuple[str, Node]]

_OPENING_DIVISOR: Final = 8
"""Divisor: the part of an allowance for opening messages of a conversation, and the one for nodes of ids."""

_MAX_ID_NODES: Final = 1024
"""Maximum nodes of ids that are read."""


class RecentHistory:
    """Reads the newest turns of histories, and the instructions with which the histories begin.

    Every method raises `TooLarge` if not even the newest turn is within `allowance`, which has a limit.
    """

    def __init__(self, records: Records, decoder: Decoder, conversations: ConversationStore) -> None:
        self._records = records
        self._decoder = decoder
        self._conversations = conversations

    async def history(self, name: str, allowance: ReadAllowance) -> list[Json] | None:
        """Return the newest turns of the history called `name`; None if part of them is gone."""
        end, behind, ids = split_name(name)
        own_id_chain = await self._own_id_chain(ids, allowance) if ids else ()
        root: Node | None = None
        chain: Chain | None
        try:
            chain = await read_chain(self._records, self._decoder, end, allowance)
        except TooLarge:
            newest = await read_newest(self._records, self._decoder, end, allowance)
            root, chain = (newest.root, newest.chain) if newest else (None, None)
        if chain is None or own_id_chain is None:
            return None
        items = _named(chain, own_id_chain)
        items = items[: len(items) - behind]
        if root is None:
            return await self._unfolded(items, allowance)
        return [*await self._opening(root.items, allowance), *_turns(items)]

    async def conversation(self, conversation_id: str, end: int, allowance: ReadAllowance) -> list[Json]:
        """Return the newest turns among the items of a conversation at positions before `end`."""
        return await self._continued(conversation_id, end, (), allowance)

    async def _continued(
        self, conversation_id: str, end: int, after: Sequence[Json], allowance: ReadAllowance
    ) -> list[Json]:
        """Return the newest turns of a conversation and the items after them."""
        opening = await self._opening_of(conversation_id, end, allowance)
        items = await self._conversations.recent(conversation_id, end, allowance)
        return [*opening, *_turns([*items, *after])]

    async def _unfolded(self, items: Sequence[Json], allowance: ReadAllowance) -> list[Json]:
        """Return the items of a whole history, and the newest turns of the conversation with which it begins."""
        if not begins_with_stand_in(items):
            return list(items)
        conversation_id, end = items[0]["conversation"], items[0]["end"]
        return await self._continued(conversation_id, end, without_stand_in(items), allowance)

    async def _opening(self, items: Sequence[Json], allowance: ReadAllowance) -> list[Json]:
        """Return the instructions with which a history begins, given the items of its first node."""
        if begins_with_stand_in(items):
            return await self._opening_of(items[0]["conversation"], items[0]["end"], allowance)
        return opening_instructions(items)

    async def _opening_of(self, conversation_id: str, end: int, allowance: ReadAllowance) -> list[Json]:
        """Return the instructions with which a conversation begins, as far as they are within their part."""
        max_bytes, left = _part(allowance), allowance.left or 0
        items = await self._conversations.opening(conversation_id, end, max_bytes, allowance)
        # Only instructions are kept of what was read.
        allowance.left = left - max_bytes
        return opening_instructions(items)

    async def _own_id_chain(self, ids: str, allowance: ReadAllowance) -> Chain | None:
        """Return the newest nodes of ids, oldest first."""
        chain = await read_end(self._records, self._decoder, ids, _MAX_ID_NODES, _part(allowance), allowance)
        return None if chain is None else chain[::-1]


def _part(allowance: ReadAllowance) -> int:
    return min(PAGE_BYTES, max(0, allowance.left or 0) // _OPENING_DIVISOR)


def _turns(items: Sequence[Json]) -> list[Json]:
    turns = whole_turns(items)
    if not turns:
        raise TooLarge
    return turns


def _named(chain: Chain, own_id_chain: Chain) -> list[Json]:
    """Return the items of a history's newest nodes with their own ids.

    Args:
        own_id_chain: the newest nodes of ids, oldest first.
    """
    items = [item for _, node in chain for item in node.items]
    ends = dict(zip((name for name, _ in chain), accumulate(len(node.items) for _, node in chain), strict=True))
    for _, node in reversed(own_id_chain):
        name, end = end_of(node)
        if name in ends:
            return with_own_ids(items, [each for _, each in own_id_chain], end - ends[name])
    return items
