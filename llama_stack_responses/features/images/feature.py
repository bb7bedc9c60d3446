"""The image tool of a stack that has an image server."""

from __future__ import annotations

from ...feature import Feature, Stack
from .settings import SETTINGS


def open_feature(stack: Stack) -> Feature:
    """Return the tool; none without an image server."""
    settings = SETTINGS.of(stack.config)
    if settings is None:
        return Feature()
    from .tool import open_tool

    return open_tool(stack, settings)
