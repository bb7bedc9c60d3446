"""Mappings whose changes can be taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

_ABSENT: Final = object()


class Changes(list[Callable[[], object]]):
    """What takes back changes, in their order."""

    def taken(self) -> Callable[[], None] | None:
        """Return what takes back all of them, and forget them; None if there are none."""
        changes = self[::-1]
        self.clear()

        def undo() -> None:
            for each in changes:
                each()

        return undo if changes else None


class UndoableDict[Key, Value](dict[Key, Value]):
    """A mapping that notes how to take its changes back.

    Args:
        changes: where it notes that.
    """

    def __init__(self, changes: Changes) -> None:
        super().__init__()
        self._changes = changes

    def __setitem__(self, key: Key, value: Value) -> None:
        self._note(key)
        super().__setitem__(key, value)

    def setdefault(self, key: Key, default: Any = None) -> Value:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: Key, default: Any = None) -> Any:
        self._note(key)
        return super().pop(key, default)

    def _note(self, key: Key) -> None:
        before = self.get(key, cast("Value", _ABSENT))

        def undo() -> None:
            if before is _ABSENT:
                dict.pop(self, key, None)
            else:
                dict.__setitem__(self, key, before)

        self._changes.append(undo)
