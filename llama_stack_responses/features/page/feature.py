"""The page's routes, unless it is turned off."""

from __future__ import annotations

from ...feature import Feature, Stack
from .settings import SETTINGS


def open_feature(stack: Stack) -> Feature:
    """Return the page; nothing if it is turned off."""
    settings = SETTINGS.of(stack.config)
    if not settings.enabled:
        return Feature()
    from .assets import Assets
    from .files import file_routes
    from .page_routes import ui_router

    return Feature(
        routes=[ui_router], public_routes=file_routes(Assets()), keeps_chat_requests=settings.record_requests
    )
