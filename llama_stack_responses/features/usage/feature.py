"""Counts what responses use, if the stack has settings for it, and enforces limits."""

from __future__ import annotations

from ...feature import Feature, Stack
from .limits.limiter import Limiter
from .prices import Prices
from .settings import SETTINGS


def open_feature(stack: Stack) -> Feature:
    """Return what counts usage and enforces limits; without its settings, it enforces only the limits of keys."""
    settings = SETTINGS.of(stack.config)
    if settings is None:
        of_keys = Limiter(stack.records, (), Prices((), ""))
        return Feature(admit=of_keys.admit, on_end=of_keys.count, start=of_keys.start, close=of_keys.stop)
    from .counting import open_usage

    return open_usage(stack, settings)
