"""Examinations on a schedule, and what they have found as a card of the page."""

from __future__ import annotations

from ...feature import Feature, Stack
from .settings import SETTINGS


def open_feature(stack: Stack) -> Feature:
    """Return the schedule and its card; nothing if there is no schedule."""
    settings = SETTINGS.of(stack.config)
    if not settings.is_on:
        return Feature()
    from .schedule import open_schedule

    return open_schedule(stack, settings)
