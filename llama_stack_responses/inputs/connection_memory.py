"""What a connection remembers of the responses that are not stored, so that it can go on from them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..core.exchanges import with_exchanges

Json = dict[str, Any]

_MOST: Final = 256
"""Responses that can be gone on from, at most; what they share is remembered once."""


@dataclass(frozen=True, slots=True)
class Link:
    """A history that is not stored, or not all of it.

    Attributes:
        items: what its last response added, input and output.
        size: their length as JSON.
        before: the history that this response began with, as far as it is not stored either.
        base: the archive's name of the stored history before all that, or None when there is none.
    """

    items: list[Json]
    size: int
    before: Link | None
    base: str | None

    @property
    def unstored(self) -> list[Json]:
        """All items behind `base`, oldest first."""
        parts: list[list[Json]] = []
        link: Link | None = self
        while link:
            parts.append(link.items)
            link = link.before
        return [item for part in reversed(parts) for item in part]


class Chains:
    """The histories of one connection's responses, the oldest forgotten first.

    Args:
        limit: bytes of remembered items, at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._links: OrderedDict[str, Link] = OrderedDict()

    def find(self, response_id: str) -> Link | None:
        """The history that ends with this response; None if it is stored, forgotten or another connection's."""
        return self._links.get(response_id)

    def forget(self, response_id: str) -> None:
        """Drops the history that ends with this response, if it is remembered."""
        self._links.pop(response_id, None)

    def keep(
        self,
        response: Json,
        new_items: list[Json],
        exchanges: Mapping[str, Json],
        before: Link | None,
        base: str | None,
    ) -> None:
        """Remembers a response: what its request added, and its output with its exchanges, behind what was before."""
        items = [*new_items, *with_exchanges(response["output"], exchanges)]
        self._links[response["id"]] = Link(items, len(json.dumps(items)), before, base)
        while len(self._links) > _MOST or (self._links and self._held() > self._limit):
            self._links.popitem(last=False)

    def _held(self) -> int:
        """The size of everything that a remembered history goes through, each part counted once."""
        sizes: dict[int, int] = {}
        for tip in self._links.values():
            link: Link | None = tip
            while link and id(link) not in sizes:
                sizes[id(link)] = link.size
                link = link.before
        return sum(sizes.values())
