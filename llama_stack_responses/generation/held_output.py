"""Counts what a running response has put out as held by its owner."""

from __future__ import annotations

from typing import Final

from ..admission import Reservation
from ..core.errors import ApiError

_FREE_CHARACTERS: Final = 2**18
"""Size of a model's output up to which it does not count, and of the steps in which it counts further."""


class HeldOutput:
    """The output of a model and the results of tools in one response.

    Args:
        held: counts them, until the response has ended.
    """

    __slots__ = ("_counted", "_held")

    def __init__(self, held: Reservation) -> None:
        self._held = held
        self._counted = _FREE_CHARACTERS

    def holds_model_output(self, size: int) -> bool:
        """Count the model's output, of this size so far; return False if its owner, or all owners, hold too much."""
        if size <= self._counted:
            return True
        further = size + _FREE_CHARACTERS - self._counted
        if not self.holds(further):
            return False
        self._counted += further
        return True

    def holds(self, size: int) -> bool:
        """Count further results of tools; return False if their owner, or all owners, hold too much."""
        try:
            self.add(size)
        except ApiError:
            return False
        return True

    def add(self, size: int) -> None:
        """Count further results of tools.

        Raises:
            ApiError: 429 or 503, their owner or all owners hold too much.
        """
        self._held.add(size)
