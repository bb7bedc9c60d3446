"""What is counted for one user, team, key or model by one limit."""

from __future__ import annotations

from fnmatch import fnmatchcase
from math import ceil
from typing import Final

from ....core.owner import Owner
from ..settings import Limit
from .measures import Measure
from .meters import Meter

_AVERAGE_OF: Final = 16
"""Responses over which the expected use of the next one is averaged."""
_EXPECTED_SHARE: Final = 1 / 4
"""The largest part of a limit that one response is expected to use."""


def name_of(limit: Limit, owner: Owner, model: str) -> str | None:
    """Return whose use a limit counts for a request; None if it does not apply."""
    match limit.by:
        case "user":
            shown, name = owner.principal, f"{owner.tenant}\0{owner.principal}"
        case "team":
            shown, name = owner.team, f"{owner.tenant}\0{owner.team}"
        case "key":
            shown, name = owner.key, f"{owner.tenant}\0{owner.key}"
        case "model":
            shown = name = model
        case "all":
            return ""
    applies = fnmatchcase(shown, limit.match) and (shown or limit.by == "user")
    return name if applies else None


class Scope:
    """A meter of one user, team, key or model.

    Args:
        measure: what it measures.
        meter: the meter.
    """

    __slots__ = ("_average", "measure", "meter")

    def __init__(self, measure: Measure, meter: Meter) -> None:
        self.measure, self.meter = measure, meter
        self._average = 0.0

    @property
    def expected(self) -> int:
        """The units that a request is expected to use."""
        most = int(self.meter.limit * _EXPECTED_SHARE)
        return 1 if self.measure.kind == "requests" else max(1, min(ceil(self._average), most))

    def use(self, units: int) -> None:
        """Count the units that a response has used."""
        self._average += (units - self._average) / (_AVERAGE_OF if self._average else 1)
        self.meter.use(units)

    def is_nearly_used(self, share: float) -> bool:
        """Return whether this share of the limit is used."""
        return self.meter.limit - self.meter.remaining >= share * self.meter.limit
