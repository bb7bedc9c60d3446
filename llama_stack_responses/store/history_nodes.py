"""Histories as chains of immutable, content-addressed nodes.

A node holds some items and refers to its parent. The items of its ancestors followed by its own are the history that
ends with it, and determine its name.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any, Final

from . import codec
from .codec import TooLarge
from .content_names import NAME_BYTES, TAG_BYTES, name_of
from .decoder import Decoder
from .read_allowance import ReadAllowance
from .records import Record, Records, bytes_of

FAN: Final = 4
"""Number of nodes of one level of the skip list between two nodes of the next level."""

_DEPTH_BYTES: Final = 4
_TOTAL_BYTES: Final = 5
_MAX_TOTAL: Final = 2 ** (8 * _TOTAL_BYTES) - 1


@dataclass(frozen=True, slots=True)
class Node:
    """One part of a history.

    Attributes:
        depth: the number of ancestors.
        links: the names of its ancestors at `link_depths(depth)`; the first is its parent.
        items: its own items.
        before: the total of its parent; 0 without one.
    """

    depth: int
    links: tuple[str, ...]
    items: Sequence[dict[str, Any]]
    before: int = field(default=0, compare=False)

    @property
    def parent(self) -> str | None:
        return self.links[0] if self.links else None

    def encode(self, *, small: bool = False, pack: bool = True) -> bytes:
        """Return the record's value; `small` says that the items are known to be small, `pack` whether to compress."""
        head, text = self.depth.to_bytes(_DEPTH_BYTES), codec.text_of(self.items, small=small)
        head += _encoded_links(self.links)
        size = codec.size_behind(len(head) + _TOTAL_BYTES, text)
        head += min(self.before + size, _MAX_TOTAL).to_bytes(_TOTAL_BYTES)
        return codec.pack_text(text, head, pack=pack)


def decode(data: bytes) -> Node:
    """Decode the result of `Node.encode`."""
    return node_of(data, codec.decode(data))


def node_of(data: bytes, items: Sequence[dict[str, Any]]) -> Node:
    """Decode the result of `Node.encode`, given its decoded items."""
    return Node(*_head(data), items)


def extend(name: str | None, parent: bytes | None, items: Sequence[dict[str, Any]]) -> Node:
    """Return a node with `items` on the parent called `name` and encoded as `parent`; a root if both are None."""
    if name is None or parent is None:
        return Node(0, (), items)
    depth, links = _head(parent)
    known = {depth: name, **dict(zip(link_depths(depth), links, strict=True))}
    return Node(depth + 1, tuple(known[at] for at in link_depths(depth + 1)), items, total(parent))


def total(data: bytes) -> int:
    """Return the cost of reading the whole history that a node ends, as `codec.size` counts."""
    return int.from_bytes(codec.head(data)[-_TOTAL_BYTES:])


def depth_of(data: bytes) -> int:
    """Return the number of ancestors of an encoded node."""
    return int.from_bytes(codec.head(data)[:_DEPTH_BYTES])


def parent_of(data: bytes) -> str | None:
    """Return the name of the parent of an encoded node, without decoding its items."""
    _, links = _head(data)
    return links[0] if links else None


def relinked(data: bytes, links: Iterable[str]) -> bytes:
    """Return an encoded node with other names of the ancestors that it links to; its items are not decoded."""
    head = codec.head(data)
    return codec.with_head(data, head[:_DEPTH_BYTES] + _encoded_links(links) + head[-_TOTAL_BYTES:])


def ancestors(data: bytes) -> dict[int, str]:
    """Return the ancestors that a node links to: name by depth."""
    depth, links = _head(data)
    return dict(zip(link_depths(depth), links, strict=True))


def _encoded_links(links: Iterable[str]) -> bytes:
    return b"".join(urlsafe_b64decode(link + "==") for link in links)


def _head(data: bytes) -> tuple[int, tuple[str, ...]]:
    head = codec.head(data)
    depth = int.from_bytes(head[:_DEPTH_BYTES])
    tagged = len(head) == _DEPTH_BYTES + len(link_depths(depth)) * (NAME_BYTES + TAG_BYTES) + _TOTAL_BYTES
    # The total, which follows the links, is shorter than a name.
    edges = range(_DEPTH_BYTES, len(head) + 1, NAME_BYTES + (TAG_BYTES if tagged else 0))
    return depth, tuple(name_of(head[start:end]) for start, end in pairwise(edges))


def link_depths(depth: int) -> list[int]:
    """Return the depths of the ancestors that a node at `depth` links to, the nearest first.

    The links form a skip list. They lead to each ancestor back to a multiple of FAN, from there to the multiples of FAN
    back to one of FAN**2, and so on to the root. These are at most FAN * log_FAN(depth) links, on average a little more
    than half of that. A child's links are the parent and some of the parent's links. From depth n, following all links
    at once reaches each ancestor in at most ceil(log_FAN(n)) steps.
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


async def read_chain(
    records: Records,
    decoder: Decoder,
    name: str,
    allowance: ReadAllowance | None = None,
    known: Mapping[str, Record] | None = None,
) -> Sequence[tuple[str, Node]] | None:
    """Return the nodes from the root to `name` with their names; None if one is gone.

    Records in `known` are not read again.

    This takes at most ceil(log4(n)) + 1 round trips for a history of n nodes.

    Raises:
        TooLarge: they exceed `allowance`. The total in the first node or the number of bytes read shows this before any
            node is decoded.
    """
    allowance = allowance or ReadAllowance()
    found = await _collect(records, name, allowance.left, None, known)
    if found is None:
        return None
    nodes, cut = found
    if cut:
        raise TooLarge
    chain = [nodes[depth] for depth in sorted(nodes)]
    items = await decoder.decode([data for _, data in chain], allowance)
    return [(each, node_of(data, of_it)) for (each, data), of_it in zip(chain, items, strict=True)]


async def read_end(
    records: Records, decoder: Decoder, name: str, last: int, max_bytes: int, allowance: ReadAllowance | None = None
) -> Sequence[tuple[str, Node]] | None:
    """Return the youngest nodes of the history that `name` ends, youngest first; None if they are gone.

    Args:
        last: maximum number of nodes.
        max_bytes: the answer ends once the nodes reach this many bytes.
        allowance: counts them as held.
    """
    chain = await encoded_end(records, name, last, max_bytes)
    if chain is None:
        return None
    items = await decoder.decode_until([data for _, data in chain], max_bytes, allowance)
    return [(each, node_of(data, of_it)) for (each, data), (of_it, _) in zip(chain, items, strict=False)]


async def encoded_end(
    records: Records, name: str, last: int, max_bytes: int | None
) -> Sequence[tuple[str, bytes]] | None:
    """Return the names and values of at most `last` nodes that end the history, youngest first; None if one is gone.

    Args:
        max_bytes: the answer ends once the nodes have more than this many bytes; None for no limit.
    """
    found = await _collect(records, name, max_bytes, last)
    if found is None:
        return None
    nodes, _ = found
    newest = max(nodes)
    return [nodes[depth] for depth in takewhile(nodes.__contains__, range(newest, newest - last, -1))]


async def _collect(
    records: Records, name: str, max_bytes: int | None, last: int | None, known: Mapping[str, Record] | None = None
) -> tuple[dict[int, tuple[str, bytes]], bool] | None:
    """Read the encoded nodes of a history.

    Args:
        last: the number of youngest nodes to read; None reads all.
        known: records that are not read again.

    Returns:
        Name and encoded node by depth, and whether they have more than `max_bytes`; only some of them were then read,
            the youngest first. None if a node is gone.
    """
    found: dict[int, tuple[str, bytes]] = {}
    wanted, first, size = [name], 0, 0
    while wanted:
        past = None if max_bytes is None else max_bytes - size + 1
        keys = [f"n/{each}" for each in wanted]
        fetched = {key: known[key] for key in keys if known and key in known}
        if missing := [key for key in keys if key not in fetched]:
            fetched |= await records.get_many(missing, max_bytes=past)
        new = {depth_of(record.value): (key.removeprefix("n/"), record.value) for key, record in fetched.items()}
        size += bytes_of(fetched.values())
        if last is not None and not found:
            first = max(new, default=0) - last + 1
        found |= new
        if max_bytes is not None and (size > max_bytes or (last is None and _totals(fetched.values()) > max_bytes)):
            return found, True
        if len(fetched) < len(wanted):
            return None
        links = {depth: link for _, data in new.values() for depth, link in ancestors(data).items() if depth >= first}
        wanted = [links[depth] for depth in sorted(links.keys() - found.keys(), reverse=True)]
    return found, False


def _totals(records: Iterable[Record]) -> int:
    """Return the largest of the nodes' totals."""
    return max((total(record.value) for record in records), default=0)
