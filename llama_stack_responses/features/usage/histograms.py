"""Histograms of times as counts, which add up like all others: percentiles of any group and time follow from them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from ...core.types import Json

FIRST_TOKEN: Final = "first_token_ms"  # noqa: S105 (a time)
DURATION: Final = "duration_ms"
HISTOGRAMS: Final = (FIRST_TOKEN, DURATION)
"""What there are histograms of: milliseconds from the creation of a response to the first token, and to its end."""

_PER_DOUBLING: Final = 4
"""Bins for each doubling of the time: each is 19% wider than the one before."""
_FIRST: Final = 12
"""The bin of times up to 8 ms."""
_LAST: Final = 88
"""The bin of times beyond 59 minutes."""


_EDGES: Final = [2 ** (number / _PER_DOUBLING) for number in range(_FIRST, _LAST)]
"""The longest times of all bins but the last, in milliseconds."""
_LONGEST: Final = {number: str(round(2 ** (number / _PER_DOUBLING))) for number in range(_FIRST, _LAST + 1)}
"""The name of each bin in a report."""

BINS: Final = {f"{name}.{number}": (name, number) for name in HISTOGRAMS for number in _LONGEST}
"""The histogram and the number of each bin, by the name under which a time counts."""


def bin_of(name: str, milliseconds: float) -> str:
    """Return the name under which a time counts, such as `first_token_ms.27`."""
    return f"{name}.{_FIRST + bisect_left(_EDGES, milliseconds)}"


def histogram(bins: Mapping[int, int]) -> Json:
    """Return how many times are in each bin, by the longest time of the bin in milliseconds, the shortest first.

    Args:
        bins: how many there are, by the number of the bin.
    """
    return {_LONGEST[number]: bins[number] for number in sorted(bins)}
