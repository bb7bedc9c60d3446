"""Histograms of times as counts, which add up like all others: percentiles of any group and time follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2
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


def bin_of(name: str, milliseconds: float) -> str:
    """Return the name under which a time counts, such as `first_token_ms.27`."""
    number = ceil(_PER_DOUBLING * log2(milliseconds)) if milliseconds > 1 else 0
    return f"{name}.{min(max(number, _FIRST), _LAST)}"


def histogram(name: str, counts: Mapping[str, int]) -> Json:
    """Return how many times are in each bin, by the longest time of the bin in milliseconds, the shortest first."""
    prefix = f"{name}."
    bins = {int(each.removeprefix(prefix)): count for each, count in counts.items() if each.startswith(prefix)}
    return {str(round(2 ** (number / _PER_DOUBLING))): bins[number] for number in sorted(bins)}
