"""The page's routes, unless it is turned off."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...feature import Feature, Stack
from ...lifecycle.periodic import Periodic
from ...store.search_index import index_of
from .settings import SETTINGS, BuiltInPage

if TYPE_CHECKING:
    from .refused.writer import RefusedWriter


def open_feature(stack: Stack) -> Feature:
    """Return the page, with what it lists beside responses; nothing if it is turned off."""
    settings = SETTINGS.of(stack.config)
    search = _search(stack, settings)
    if not settings.enabled:
        return Feature(start=search.start, close=search.stop) if search else Feature()
    from .assets import Assets
    from .files import file_routes
    from .page_routes import ui_router
    from .refused.rows import RefusedRequests

    writer = _writer(stack, settings)
    tasks = [each for each in (search, writer) if each]

    def start() -> None:
        for task in tasks:
            task.start()

    async def close() -> None:
        for task in tasks:
            await task.stop()

    index = index_of(stack.records) if settings.search else None
    return Feature(
        routes=[partial(ui_router, RefusedRequests(stack.records), index)],
        public_routes=file_routes(Assets()),
        keeps_chat_requests=settings.record_requests,
        on_refused=writer.add if writer else None,
        start=start,
        close=close,
    )


def _writer(stack: Stack, settings: BuiltInPage) -> RefusedWriter | None:
    if not settings.refused_per_user:
        return None
    from .refused.writer import RefusedWriter

    return RefusedWriter(stack.records, settings.refused_days, settings.refused_per_user)


def _search(stack: Stack, settings: BuiltInPage) -> Periodic | None:
    """Return what keeps the index of the store, or removes it if it is turned off."""
    index = index_of(stack.records)
    if index is None:
        return None
    from .search.indexer import Indexer, Remover

    return Indexer(stack.records, index) if settings.enabled and settings.search else Remover(index)
