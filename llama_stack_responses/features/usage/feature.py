"""Counts what responses use, if the stack has settings for it, and enforces limits."""

from __future__ import annotations

from ...feature import Feature, Stack
from .limits.on_demand import LimitsOnDemand
from .settings import SETTINGS


def open_feature(stack: Stack) -> Feature:
    """Return what counts usage and enforces limits; without its settings, it enforces only the limits of keys."""
    settings = SETTINGS.of(stack.config)
    limits = LimitsOnDemand(stack, settings)
    if settings is None:
        return Feature(
            admit=limits.admit,
            admit_items=limits.admit_items,
            at_end=limits.ended_ops,
            on_end=limits.count,
            close=limits.stop,
        )
    from .counting import open_usage

    return open_usage(stack, settings, limits)
