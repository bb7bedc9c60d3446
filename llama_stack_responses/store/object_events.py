"""What features tell each other of objects: a batch has ended, and a webhook says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.owner import Owner
from .records import Op


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """Something that has become of an object.

    Attributes:
        type: what, such as `batch.completed`.
        id: the id of the object.
        owner: its owner.
        at: when, in seconds since the epoch, on the store's clock.
    """

    type: str
    id: str
    owner: Owner
    at: float


Record = Callable[[ObjectEvent], Sequence[Op]]
"""Returns what the commit of an event writes for a feature."""

Written = Callable[[ObjectEvent], None]
"""Is called once an event is written."""


class ObjectEvents:
    """The events of one stack. A feature that sends events asks for their ops, and one that wants them adds itself."""

    def __init__(self) -> None:
        self._listeners: list[tuple[Record, Written]] = []

    def add(self, record: Record, written: Written) -> None:
        """Have events recorded."""
        self._listeners.append((record, written))

    def ops(self, event: ObjectEvent) -> list[Op]:
        """Return what belongs to the commit with which an event happens, exactly once."""
        return [op for record, _ in self._listeners for op in record(event)]

    def written(self, event: ObjectEvent) -> None:
        """Note that the commit was applied."""
        for _, written in self._listeners:
            written(event)
