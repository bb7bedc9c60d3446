"""The page's routes, unless it is turned off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...feature import Feature, Stack
from ...lifecycle.periodic import Periodic
from ...store.records import reader_of
from ...store.search_index import SearchIndex, index_of
from .settings import SETTINGS, BuiltInPage

if TYPE_CHECKING:
    from ...service.responses import OpenAIResponsesImpl
    from ...wire.response_routes import Routes
    from .cards import ShownCards
    from .refused.writer import RefusedWriter
    from .search.finding import Search
    from .search.indexer import Indexer
    from .shared_links.routes import SharedLinks


def open_feature(stack: Stack) -> Feature:
    """Return the page, with what it lists beside responses; nothing if it is turned off."""
    settings = SETTINGS.of(stack.config)
    index = index_of(stack.records)
    searched = _searched(stack, index) if index and settings.enabled and settings.search else None
    remover = _remover(index) if index and not searched else None
    if not settings.enabled:
        return Feature(start=remover.start, close=remover.stop) if remover else Feature()
    from .assets import Assets
    from .cards import shown_cards
    from .files import file_routes
    from .store_card import StoreSizes

    writer, sizes = _writer(stack, settings), StoreSizes(stack.records)
    shared, files = _shared(stack, settings), file_routes(Assets())
    search, indexer = searched or (None, None)
    tasks = [each for each in (indexer, remover, writer, sizes) if each]

    def start() -> None:
        for task in tasks:
            task.start()

    async def close() -> None:
        for task in tasks:
            await task.stop()

    def cards(impl: OpenAIResponsesImpl) -> ShownCards:
        return shown_cards(impl, stack, sizes)

    return Feature(
        routes=[*(each.routes for each in shared), *_routes(stack, search, cards)],
        public_routes=[lambda *_: files, *(each.public_routes for each in shared)],
        keeps_chat_requests=settings.record_requests,
        on_refused=writer.add if writer else None,
        on_end=indexer.ended if indexer else None,
        start=start,
        close=close,
    )


def _routes(
    stack: Stack, search: Search | None, cards: Callable[[OpenAIResponsesImpl], ShownCards]
) -> Sequence[Routes]:
    from .operator_routes import operator_routes
    from .page_routes import ui_router
    from .refused.rows import RefusedRequests

    return [*operator_routes(stack, search), partial(ui_router, RefusedRequests(stack.records), search, cards)]


def _writer(stack: Stack, settings: BuiltInPage) -> RefusedWriter | None:
    if not settings.refused_per_user:
        return None
    from .refused.writer import RefusedWriter

    return RefusedWriter(stack.records, settings.refused_days, settings.refused_per_user)


def _shared(stack: Stack, settings: BuiltInPage) -> list[SharedLinks]:
    """Return the routes of links to responses, unless they are turned off."""
    if not settings.link_seconds:
        return []
    from .shared_links.routes import SharedLinks

    return [SharedLinks(stack.records, stack.config.roles, stack.operators, settings.link_seconds)]


def _searched(stack: Stack, index: SearchIndex) -> tuple[Search, Indexer]:
    """Return what searches in the index of the store, and what keeps it up to date."""
    from .search.demand import Demand
    from .search.finding import Search
    from .search.indexer import Indexer
    from .search.texts import Texts

    demand, texts = Demand(stack.records), Texts(reader_of(stack.records))
    running = stack.activity.running
    indexer = Indexer(index, demand, texts, lambda: bool(running))
    return Search(index, demand, texts, indexer.catch_up), indexer


def _remover(index: SearchIndex) -> Periodic:
    from .search.indexer import Remover

    return Remover(index)
