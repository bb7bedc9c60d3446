"""Reservations of memory for tests of what counts it."""

from __future__ import annotations

from llama_stack_responses.admission import Admission, Quota, Reservation
from llama_stack_responses.core.owner import ANONYMOUS


def limited(most: int) -> Reservation:
    """Return an empty reservation of a user who may hold this many bytes."""
    return Admission(Quota("files, pages and running outputs", most, most)).reserve(ANONYMOUS)


def unlimited() -> Reservation:
    """Return an empty reservation of a user who may hold far more than a test does."""
    return limited(2**30)
