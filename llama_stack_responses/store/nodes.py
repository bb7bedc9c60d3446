"""Histories as chains of immutable, content-addressed nodes.

A node holds some items and stands on its parent; the items of its ancestors
and its own, in order, are the history that it ends, and give it its name.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from . import codec
from .hashing import NAME_BYTES
from .records import Records

FAN: Final = 4
"""How many nodes of one level of the skip list lie between two of the next."""


@dataclass(frozen=True, slots=True)
class Node:
    """One link of a history.

    Attributes:
        depth: how many ancestors it has.
        links: the names of its ancestors at `link_depths(depth)`; the first is its parent.
        items: its own items.
    """

    depth: int
    links: tuple[str, ...]
    items: Sequence[dict[str, Any]]

    @property
    def parent(self) -> str | None:
        return self.links[0] if self.links else None

    def ancestors(self) -> dict[int, str]:
        """The ancestors that the node knows: name by depth."""
        return dict(zip(link_depths(self.depth), self.links, strict=True))

    def encode(self) -> bytes:
        links = b"".join(urlsafe_b64decode(link + "==") for link in self.links)
        return codec.encode(self.items, self.depth.to_bytes(4) + links)


def decode(data: bytes) -> Node:
    """The node that `Node.encode` wrote as `data`."""
    return Node(*_head(data), codec.decode(data))


def extend(name: str | None, parent: bytes | None, items: Sequence[dict[str, Any]]) -> Node:
    """A node with `items` on the node called `name` and encoded as `parent`; on nothing if both are None."""
    if name is None or parent is None:
        return Node(0, (), items)
    depth, links = _head(parent)
    known = {depth: name, **dict(zip(link_depths(depth), links, strict=True))}
    return Node(depth + 1, tuple(known[at] for at in link_depths(depth + 1)), items)


def _head(data: bytes) -> tuple[int, tuple[str, ...]]:
    head = codec.head(data)
    edges = range(4, len(head) + 1, NAME_BYTES)
    links = (urlsafe_b64encode(head[start:end]).rstrip(b"=").decode() for start, end in pairwise(edges))
    return int.from_bytes(head[:4]), tuple(links)


def link_depths(depth: int) -> list[int]:
    """The depths of the ancestors that a node at `depth` lists, the nearest first.

    They are the ancestors back to a multiple of FAN, from there the multiples of FAN back to one of FAN**2, and so on
    to the root. That is at most FAN * log_FAN(depth) links, on average a little more than half of that. A child's
    links are among its parent's and the parent itself. Whoever follows all links at once from depth n knows each
    ancestor after at most ceil(log_FAN(n)) steps.
    """
    depths: list[int] = []
    step = 1
    while depth:
        depth -= step
        depths.append(depth)
        while depth % (step * FAN):
            depth -= step
            depths.append(depth)
        step *= FAN
    return depths


async def read_chain(records: Records, name: str, last: int | None = None) -> list[tuple[str, Node]] | None:
    """The nodes from the root to `name` with their names, or the `last` of them; None if one is gone.

    At most ceil(log4(n)) + 1 round trips for a history of n nodes.
    """
    found: dict[int, tuple[str, Node]] = {}
    wanted, first = {name}, 0
    while wanted:
        fetched = await records.get_many([f"n/{each}" for each in wanted])
        if len(fetched) < len(wanted):
            return None
        chain = [(key.removeprefix("n/"), decode(record.value)) for key, record in fetched.items()]
        if last is not None and not found:
            first = chain[0][1].depth - last + 1
        found |= {node.depth: (each, node) for each, node in chain}
        wanted = {
            link
            for _, node in chain
            for depth, link in node.ancestors().items()
            if depth >= first and depth not in found
        }
    return [found[depth] for depth in sorted(found)]
