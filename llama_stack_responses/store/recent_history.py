"""Read the newest turns of a history that is too large to be read whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from ..core.types import Json
from ..items.truncation import opening_instructions, whole_turns
from .codec import TooLarge
from .conversation_store import ConversationStore, begins_with_stand_in, without_stand_in
from .decoder import Decoder
from .history_nodes import Node, ancestors, depth_of, encoded_end, node_of, read_chain, read_end, total
from .item_ids import end_of, with_own_ids
from .layout import split_name
from .read_allowance import PAGE_BYTES, ReadAllowance
from .records import Records

type Chain = Sequence[tuple[str, Node]]

_OPENING_DIVISOR: Final = 8
"""Divisor: the part of an allowance for opening messages of a conversation, and the one for nodes of ids."""

_MAX_ID_NODES: Final = 1024
"""Maximum nodes of ids that are read."""

_ROOT_DIVISOR: Final = 2
"""Divisor: the largest part of an allowance that the first node of a history may take."""


@dataclass(frozen=True, slots=True)
class NewestNodes:
    """The newest nodes of a history.

    Attributes:
        root: the first node of the history, which is not part of `chain`.
        chain: as many of the newest nodes as are within the limit, oldest first, each with its name.
    """

    root: Node
    chain: Chain


async def read_newest(records: Records, decoder: Decoder, name: str, allowance: ReadAllowance) -> NewestNodes | None:
    """Return as many of the newest nodes of a history as fit in `allowance`; None if a node is missing.

    The stored totals lead to the oldest of them, one record at a time, in O(log(n)**2) reads for a history of n nodes.

    Raises:
        TooLarge: the newest node alone exceeds the allowance, or the first one takes more than half of it.
    """
    newest = await _value(records, name)
    if newest is None:
        return None
    links = ancestors(newest)
    first = await _value(records, links[0]) if links else None
    if first is None or allowance.left is None:
        raise TooLarge
    allowance.check(total(first) * _ROOT_DIVISOR)
    [items] = await decoder.decode([first], allowance)
    count = await _count(records, newest, total(newest) - allowance.left)
    if not count:
        raise TooLarge
    nodes = await encoded_end(records, name, count, None)
    if nodes is None:
        return None
    values = [data for _, data in reversed(nodes)]
    decoded = await decoder.decode(values, allowance)
    chain = [(each, node_of(data, of_it)) for (each, data), of_it in zip(reversed(nodes), decoded, strict=True)]
    return NewestNodes(node_of(first, items), chain)


async def _count(records: Records, newest: bytes, max_left_out: int) -> int | None:
    """Return how many nodes follow the first whose total is `max_left_out` or more; None if a node is gone."""
    left_out = newest
    while True:
        links = ancestors(left_out)
        depths = sorted(links)
        # The totals grow with the depth: a binary search finds the oldest ancestor that has to be left out.
        low, high, further = 0, len(depths), None
        while low < high:
            middle = (low + high) // 2
            data = await _value(records, links[depths[middle]])
            if data is None:
                return None
            if total(data) >= max_left_out:
                high, further = middle, data
            else:
                low = middle + 1
        if further is None:
            return depth_of(newest) - depth_of(left_out)
        left_out = further


async def _value(records: Records, name: str) -> bytes | None:
    key = f"n/{name}"
    record = (await records.get_many([key])).get(key)
    return record.value if record else None


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
