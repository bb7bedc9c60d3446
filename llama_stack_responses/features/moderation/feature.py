"""The moderation of a stack that has a moderation server or a safety provider."""

from __future__ import annotations

from ...feature import Feature, Stack
from .settings import SETTINGS


def open_feature(stack: Stack) -> Feature:
    """Return the moderation by the configured server, or else by the stack's safety provider; none without both."""
    settings = SETTINGS.of(stack.config)
    if not settings.url and stack.safety is None:
        return Feature()
    from .by_checks import open_moderation

    return open_moderation(settings, stack.safety)
