"""Rows of event logs in the memory of this process: readers of one row share it, and its bytes count once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary, finalize

from ..admission import Reservation
from ..core.errors import ApiError
from ..stream.events import Event


class ReservationRefused(Exception):  # noqa: N818 - a reason to wait
    """The readers of this user, or of all users, hold all the bytes that they may.

    Attributes:
        error: the refusal.
    """

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, eq=False, weakref_slot=True, slots=True)
class Row:
    """Consecutive events of one response, at least one."""

    events: Sequence[Event]

    @property
    def last(self) -> int:
        """The number of the last event."""
        number: int = self.events[-1]["sequence_number"]
        return number

    def after(self, number: int) -> list[Event]:
        """Return the events after number `number`."""
        return [event for event in self.events if event["sequence_number"] > number]


class EventRows:
    """The rows that readers hold; a row is dropped with its last reader."""

    def __init__(self) -> None:
        self._rows: WeakValueDictionary[tuple[str, int], Row] = WeakValueDictionary()

    def find(self, response_id: str, number: int) -> Row | None:
        """Return the row that begins with the event of this number; None if no reader holds it."""
        return self._rows.get((response_id, number))

    def get_or_add(
        self, response_id: str, events: Sequence[Event], size: int, reserve: Callable[[], Reservation] | None
    ) -> Row:
        """Return the row with these events: the one that another reader holds, or a new one.

        Args:
            size: bytes of the events in memory.
            reserve: creates the reservation for the bytes of a new row, which is released with the row; None for none.

        Raises:
            ReservationRefused: the reservation is refused.
        """
        first: int = events[0]["sequence_number"]
        existing = self.find(response_id, first)
        if existing is not None and existing.last >= events[-1]["sequence_number"]:
            return existing
        row = Row(events)
        if reserve:
            try:
                reservation = reserve().add(size)
            except ApiError as error:
                raise ReservationRefused(error) from error
            finalize(row, reservation.release)
        self._rows[response_id, first] = row
        return row
