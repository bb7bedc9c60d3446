"""The page's routes, unless it is turned off."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ...feature import Feature, Stack
from .settings import SETTINGS


def open_feature(stack: Stack) -> Feature:
    """Return the page, with what it lists beside responses; nothing if it is turned off."""
    settings = SETTINGS.of(stack.config)
    if not settings.enabled:
        return Feature()
    from .assets import Assets
    from .files import file_routes
    from .page_routes import ui_router
    from .refused.rows import RefusedRequests
    from .refused.writer import RefusedWriter

    page = Feature(
        routes=[partial(ui_router, RefusedRequests(stack.records))],
        public_routes=file_routes(Assets()),
        keeps_chat_requests=settings.record_requests,
    )
    if not settings.refused_per_user:
        return page
    writer = RefusedWriter(stack.records, settings.refused_days, settings.refused_per_user)
    return replace(page, on_refused=writer.add, start=writer.start, close=writer.stop)
