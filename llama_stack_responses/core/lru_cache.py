"""A cache of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class LruCache[Key, Value]:
    """Holds the most recently used values.

    Args:
        max_size: maximum size of all values together.
        size: returns the size of a value; by default, each counts as one.
    """

    def __init__(self, max_size: int, size: Callable[[Value], int] = lambda _: 1) -> None:
        self._max_size = max_size
        self._size_of = size
        self._size = 0
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, which is then the most recently used one; None if there is none."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def peek(self, key: Key) -> Value | None:
        """Return the value of a key without using it; None if there is none."""
        return self._values.get(key)

    def keys(self) -> list[Key]:
        """Return all keys, the most recently used one last."""
        return list(self._values)

    def values(self) -> list[Value]:
        """Return all values, the most recently used one last."""
        return list(self._values.values())

    def set(self, key: Key, value: Value) -> None:
        """Set the value of a key. Least recently used values are dropped until the others are within the size."""
        if key in self._values:
            self._size -= self._size_of(self._values.pop(key))
        self._values[key] = value
        self._size += self._size_of(value)
        while self._size > self._max_size:
            _, dropped = self._values.popitem(last=False)
            self._size -= self._size_of(dropped)
