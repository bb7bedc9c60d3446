"""The classes of background work: their names, and what a request asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class WorkClass(StrEnum):
    """A class of background work. Its value begins the orders of its jobs, so the classes are claimed in this order.

    Those of `BACKGROUND` begin with a digit, as in versions that had no other class.
    """

    PRIORITY = "-"
    BACKGROUND = ""
    WINDOW = "w"
    FLEX = "x"
    BATCH = "y"

    @staticmethod
    def of(order: str) -> WorkClass:
        """Return the class of a job with this order."""
        return WorkClass(order[0]) if order[:1] in _LETTERS else WorkClass.BACKGROUND

    @property
    def can_wait(self) -> bool:
        """Whether the work is meant for times in which a server has nothing else to do."""
        return self not in (WorkClass.PRIORITY, WorkClass.BACKGROUND)


_LETTERS: Final = frozenset(each.value for each in WorkClass if each.value)


@dataclass(frozen=True, slots=True)
class Work:
    """What a job is queued as.

    Attributes:
        kind: its class.
        window: seconds within which it is to be completed, for the class `WINDOW`.
        continues: names what it belongs to, for the class `WINDOW`: it is claimed as if it had been queued with the
            first job of its owner that has the same name. Empty if it belongs to nothing.
    """

    kind: WorkClass = WorkClass.BACKGROUND
    window: float = 0.0
    continues: str = ""


BACKGROUND: Final = Work()
