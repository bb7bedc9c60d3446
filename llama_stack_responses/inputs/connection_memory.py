"""The histories of unstored responses that a connection remembers, so that requests can continue from them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..core.exchanges import with_exchanges

Json = dict[str, Any]

_MOST: Final = 256
"""Maximum responses that can be continued; a shared part of their histories is kept once."""


@dataclass(frozen=True, slots=True)
class Link:
    """A history that is not stored, or only in part.

    Attributes:
        items: input and output that its last response added.
        size: their length as JSON.
        before: the unstored part of the history that this response continued.
        base: the archive's name of the stored history before all that, or None if there is none.
    """

    items: list[Json]
    size: int
    before: Link | None
    base: str | None

    @property
    def unstored(self) -> list[Json]:
        """All items after `base`, oldest first."""
        parts: list[list[Json]] = []
        link: Link | None = self
        while link:
            parts.append(link.items)
            link = link.before
        return [item for part in reversed(parts) for item in part]


class Chains:
    """The histories of one connection's responses. At a limit, the oldest is dropped.

    Args:
        limit: maximum bytes of remembered items.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._links: OrderedDict[str, Link] = OrderedDict()

    def find(self, response_id: str) -> Link | None:
        """Return the history that ends with this response; None if it is stored, dropped or another connection's."""
        return self._links.get(response_id)

    def forget(self, response_id: str) -> None:
        """Drop the history that ends with this response, if it is remembered."""
        self._links.pop(response_id, None)

    def keep(
        self,
        response: Json,
        new_items: list[Json],
        exchanges: Mapping[str, Json],
        before: Link | None,
        base: str | None,
    ) -> None:
        """Remember a response: the request's items, then its output with its exchanges, after the history `before`."""
        items = [*new_items, *with_exchanges(response["output"], exchanges)]
        self._links[response["id"]] = Link(items, len(json.dumps(items)), before, base)
        while len(self._links) > _MOST or (self._links and self._held() > self._limit):
            self._links.popitem(last=False)

    def _held(self) -> int:
        """Return the size of all remembered histories; each shared part counts once."""
        sizes: dict[int, int] = {}
        for tip in self._links.values():
            link: Link | None = tip
            while link and id(link) not in sizes:
                sizes[id(link)] = link.size
                link = link.before
        return sum(sizes.values())
