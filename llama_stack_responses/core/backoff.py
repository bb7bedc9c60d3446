"""Pauses between the attempts of something that fails."""

from __future__ import annotations

import random


def pause_after(attempt: int, first: float, longest: float) -> float:
    """Return the seconds between an attempt and the next one, with jitter.

    Args:
        attempt: the number of the attempt that has failed, from 1.
        first: seconds after the first one, which double with each further one.
        longest: maximum without the jitter.
    """
    return min(first * 2.0 ** min(attempt - 1, 30), longest) * random.uniform(0.8, 1.2)  # noqa: S311 (no secret)
