"""Histories as chains of immutable, content-addressed nodes.

A node holds some items and stands on its parent; the items of its ancestors
and its own, in order, are the history that it ends. Its name is a running hash
over all these items, one after the other, so it does not depend on how the
history was cut into nodes: whoever comes along with the same items finds it.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

from . import codec

FAN: Final = 4
"""How many nodes of one level of the skip list lie between two of the next."""

_HASH: Final = 16


class Hasher:
    """Names for what one user stores. The same content has other names under another user.

    Args:
        principal: the user's name.
    """

    def __init__(self, principal: str) -> None:
        self._key = blake2b(principal.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        self.owner = self._name(b"owner", b"", 12)
        """16 characters that stand for the user in keys."""

    def content(self, data: bytes) -> str:
        """The name of a value: 22 characters."""
        return self._name(b"content", data, _HASH)

    def item(self, item_id: str) -> str:
        """The name of an item id: 16 characters."""
        return self._name(b"item", item_id.encode("utf-8", "surrogatepass"), 12)

    def histories(self, base: str | None, items: Iterable[Mapping[str, Any]]) -> list[str]:
        """The names of the histories that `base` (None: nothing) becomes with each further one of `items`."""
        names = [base or ""]
        for item in items:
            names.append(self._name(b"history", names[-1].encode() + canonical(item), _HASH))
        return names[1:]

    def _name(self, kind: bytes, data: bytes, size: int) -> str:
        digest = blake2b(data, digest_size=size, key=self._key, person=kind).digest()
        return urlsafe_b64encode(digest).rstrip(b"=").decode()


def canonical(item: Mapping[str, Any]) -> bytes:
    """What makes an item the same item, although a client sends it back in fewer words than it got it.

    Its id, its status, fields that are null, and an output text's annotations and logprobs do not count; a message's
    content may be a string or a list with that text alone.
    """
    kept = _without(item, "id", "status")
    kept.setdefault("type", "message")
    kind = "output_text" if kept.get("role") == "assistant" else "input_text"
    if kept["type"] == "message" and isinstance(kept.get("content"), str):
        kept["content"] = [{"type": kind, "text": kept["content"]}]
    for name in ("content", "summary"):
        if isinstance(parts := kept.get(name), list):
            kept[name] = [_without(part, "annotations", "logprobs") for part in parts]
    return codec.dumps(kept, ordered=True)


def _without(value: Any, *names: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: field for name, field in value.items() if field is not None and name not in names}


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
    edges = range(4, len(head) + 1, _HASH)
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
