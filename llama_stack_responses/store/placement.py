"""Which tag a new response or conversation gets, and so in which partition of the store it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, Final
from uuid import uuid4

from ..core.ids import tag_of
from ..core.owner import Owner
from ..core.types import Json
from .content_names import Hasher, home_of

_ITEMS: Final = 8
_PARTS: Final = 8
_CHARACTERS: Final = 512
"""How much of the beginning of an input decides."""


class Placement:
    """Chooses tags.

    Args:
        partitions: the number of partitions of the store.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions: Final = partitions
        """The number of partitions of the store."""

    def of_response(self, owner: Owner, continues: str | None, items: Sequence[Json]) -> int:
        """Return the tag of a response: that of what it continues, or one of the beginning of its input.

        So a client that sends a conversation again, and more after it, finds what is stored of it.

        Args:
            continues: the id of the response or conversation that it continues; None for a first one.
            items: its input.
        """
        if continues:
            return tag_of(continues)
        if self.partitions == 1:
            return 0
        hashed = blake2b(Hasher(owner).owner.encode(), digest_size=2)
        for part in _beginning(items):
            hashed.update(f"{len(part)} {part}".encode("utf-8", "surrogatepass"))
        return int.from_bytes(hashed.digest()) % self.partitions

    def of_conversation(self) -> int:
        """Return the tag of a new conversation."""
        return uuid4().int % self.partitions

    def of_owner(self, owner: Owner) -> int:
        """Return the tag of what a user has beside responses and conversations, which is always the same."""
        return home_of(Hasher(owner).owner) if self.partitions > 1 else 0

    def of_key(self, name: str) -> int:
        """Return the tag of a first response with the Idempotency-Key of this name."""
        return home_of(name) % self.partitions


ONE_PARTITION: Final = Placement(1)


def _beginning(items: Sequence[Json]) -> Iterator[str]:
    """Yield texts from an input up to its first message of a user: a bounded part of it."""
    for item in islice(items, _ITEMS):
        yield from _texts(item.get("type"), item.get("role"), item.get("content"))
        if item.get("role") == "user":
            return


def _texts(*values: Any) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value[:_CHARACTERS]
        elif isinstance(value, list):
            for part in value[:_PARTS]:
                yield from _texts(*(part.get(name) for name in ("text", "file_id", "image_url", "file_url")))
        elif isinstance(value, Mapping):
            yield from _texts(value.get("text"))
