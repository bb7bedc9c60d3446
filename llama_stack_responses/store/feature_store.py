"""What the features keep for users in the store, beside responses and conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ..core.discovery import modules_of_features
from ..core.errors import ApiError
from ..core.owner import Owner
from ..core.types import Json
from .decoder import Decoder
from .records import Records

__all__ = ["Decoder", "Exported", "FeatureStore", "NotDeleted", "OwnedObjects", "Sized"]


async def _none() -> AsyncIterator[Json]:
    for each in list[Json]():
        yield each


class NotDeleted(ApiError):  # noqa: N818 - as `ApiError`, it is an answer
    """An object could not be deleted, though others may be. The message names it."""


@dataclass(frozen=True, slots=True)
class Exported:
    """An object, as an export has it.

    Attributes:
        type: its type, such as `skill`.
        owner: its owner.
        fields: its fields.
        members: the name of its list of members, such as `versions`.
        each: yields these, which may be many and large; by default, there are none.
    """

    type: str
    owner: Owner
    fields: Json
    members: str
    each: AsyncIterator[Json] = field(default_factory=_none)


class OwnedObjects(Protocol):
    """The objects of one kind. Each belongs to an owner, until it is deleted.

    Every method raises `ApiError` 503 when the store is unavailable.
    """

    @property
    def name(self) -> str:
        """Their name in the plural, such as `skills`."""
        ...

    def ids_of(self, owner: Owner) -> AsyncIterator[str]:
        """Yield the ids of an owner's objects, oldest first."""
        ...

    def export(self, owner: Owner) -> AsyncIterator[Exported]:
        """Yield an owner's objects, oldest first."""
        ...

    async def delete(self, owner: Owner, object_id: str) -> None:
        """Delete an object and all that belongs to it.

        Raises:
            ApiError: 404, the owner has no such object.
            NotDeleted: this object cannot be deleted.
        """
        ...


class FeatureStore(OwnedObjects, Protocol):
    """The objects of one kind that a feature stores."""

    @property
    def prefix(self) -> str:
        """The prefix of the keys of which each object has one."""
        ...

    async def forget(self, owner: Owner) -> None:
        """End what an owner has beside these objects, once they are deleted with all that the owner has stored."""
        ...


Finish = Callable[[int], Awaitable[None]]
"""Finishes at most a number of deletions that were interrupted. Raises `ApiError` 503 if the store is unavailable."""


@runtime_checkable
class Sized(Protocol):
    """A `FeatureStore` whose objects may be large."""

    def sizes(self) -> AsyncIterator[tuple[Owner, int]]:
        """Yield the owner of each object, and the bytes that it takes in the store."""
        ...


def open_feature_stores(records: Records, decoder: Decoder) -> list[FeatureStore]:
    """Return what the features of this installation keep in a store: the `open_store` of their `stored.py`."""
    return [module.open_store(records, decoder) for module in modules_of_features("stored").values()]


def open_unfinished(records: Records, decoder: Decoder) -> list[Finish]:
    """Return what finishes deletions of features: the `open_unfinished` of their `unfinished.py`."""
    return [module.open_unfinished(records, decoder) for module in modules_of_features("unfinished").values()]
