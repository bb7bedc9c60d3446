"""Read the newest part of a history that is too large to be read whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .codec import TooLarge
from .decoder import Decoder
from .history_nodes import Node, ancestors, depth_of, encoded_end, node_of, total
from .read_allowance import ReadAllowance
from .records import Records

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
    chain: Sequence[tuple[str, Node]]


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
