"""Which users and values are counted by their names: a day has a bounded number of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from .counted import OTHER, Dimensions
from .rows import PARTS, TAGGED_PARTS

_OF_USER: Final = ("team", "key", "model", "metadata")
_COMBINATIONS: Final = 4
"""Combinations of the values of one user that are counted, as a multiple of the values of one dimension."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many names a day has.

    Attributes:
        users: users.
        values: teams, keys, models and values of metadata, each of one user.
    """

    users: int
    values: int


@dataclass(slots=True)
class _Known:
    """The values of one user that are counted by their names, by their dimension, and all their combinations."""

    values: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in _OF_USER})
    all: set[Dimensions] = field(default_factory=set)

    def add(self, dimensions: Dimensions) -> None:
        self.all.add(dimensions)
        for name, values in self.values.items():
            if value := getattr(dimensions, name):
                values.add(value)


class Names:
    """The names of one day, of the users of one part.

    Args:
        bounds: how many there may be.
        known: the dimensions that are counted already.
        is_tagged: whether it is one of many parts of a store with partitions: of few users each, so that some parts
            have twice as many as others.
    """

    def __init__(self, bounds: Bounds, known: Iterable[Dimensions], *, is_tagged: bool = False) -> None:
        self._bounds = bounds
        self._most = max(1, 2 * bounds.users // TAGGED_PARTS if is_tagged else bounds.users // PARTS)
        self._users: defaultdict[tuple[str, str], _Known] = defaultdict(_Known)
        for each in known:
            self._users[each.tenant, each.user].add(each)

    def counted_as(self, dimensions: Dimensions) -> Dimensions:
        """Return the dimensions as which a response is counted."""
        known = self._users.get((dimensions.tenant, dimensions.user))
        if known and dimensions in known.all:
            return dimensions
        named = self._named(dimensions)
        self._users[named.tenant, named.user].add(named)
        return named

    def _named(self, dimensions: Dimensions) -> Dimensions:
        user = (dimensions.tenant, dimensions.user)
        if user not in self._users:
            is_full = len(self._users) >= self._most
            return Dimensions(dimensions.tenant, *[OTHER] * 5) if is_full else dimensions
        known, most = self._users[user], self._bounds.values
        further = {
            name: OTHER
            for name, values in known.values.items()
            if (value := getattr(dimensions, name)) and value not in values and len(values) >= most
        }
        dimensions = dimensions._replace(**further)
        if dimensions not in known.all and len(known.all) >= most * _COMBINATIONS:
            return dimensions._replace(**dict.fromkeys(_OF_USER, OTHER))
        return dimensions
