"""The keys of a stack that has settings for them."""

from __future__ import annotations

from ...feature import Feature, Stack
from .settings import SETTINGS


def open_feature(stack: Stack) -> Feature:
    """Return what authenticates users by their keys; nothing without the setting `keys`."""
    settings = SETTINGS.of(stack.config)
    if settings is None:
        return Feature()
    from .opened_keys import open_keys

    return open_keys(stack, settings)
