"""Runs batches, if the stack has settings for them."""

from __future__ import annotations

from ...feature import Feature, Stack
from .settings import SETTINGS


def open_feature(stack: Stack) -> Feature:
    """Return what runs batches, and their routes; nothing without the setting `batches`.

    Raises:
        WrongConfiguration: the stack has no Files API.
    """
    settings = SETTINGS.of(stack.config)
    if settings is None:
        return Feature()
    from .opened import open_batches

    return open_batches(stack, settings)
