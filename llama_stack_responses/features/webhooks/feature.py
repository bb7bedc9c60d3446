"""Delivers webhooks, if the stack has settings for them."""

from __future__ import annotations

from ...feature import Feature, Stack
from .settings import SETTINGS


def open_feature(stack: Stack) -> Feature:
    """Return what delivers webhooks, and their routes; nothing without the setting `webhooks`."""
    settings = SETTINGS.of(stack.config)
    if settings is None:
        return Feature()
    from .opened import open_webhooks

    return open_webhooks(stack, settings)
