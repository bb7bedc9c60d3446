"""The cards of the view of what runs now: those of the page, and those that features bring."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...core.card_sections import section
from ...core.errors import ApiError
from ...core.types import Json
from ...feature import Card, Stack
from ...service.responses import OpenAIResponsesImpl
from .model_servers_card import model_servers_card
from .queue_card import queue_card
from .server_card import server_card
from .store_card import StoreSizes, store_card


class ShownCards:
    """Makes the cards for the current user.

    Args:
        cards: the cards, in their order.
    """

    def __init__(self, cards: Sequence[Card]) -> None:
        self._cards = cards

    async def read(self) -> Json:
        """Return the cards that have sections; those of one title are one."""
        found: dict[str, list[Json]] = {}
        for card, sections in zip(self._cards, await asyncio.gather(*map(_sections, self._cards)), strict=True):
            found.setdefault(card.title, []).extend(sections)
        again = {card.title for card in self._cards if card.refresh}
        data = [
            {"title": title, "sections": sections, "refreshable": title in again}
            for title, sections in found.items()
            if sections
        ]
        return {"object": "ui.cards", "data": data}

    async def refresh(self) -> Json:
        """Have what the cards show found out again, and return them.

        Raises:
            ApiError: that failed.
        """
        await asyncio.gather(*(card.refresh() for card in self._cards if card.refresh))
        return await self.read()


def shown_cards(impl: OpenAIResponsesImpl, stack: Stack, sizes: StoreSizes) -> ShownCards:
    """Return the cards of a server."""
    first = [queue_card(impl.jobs, impl.access.current_user), model_servers_card(impl, stack)]
    return ShownCards([*first, *impl.cards, store_card(impl, sizes), server_card(impl)])


async def _sections(card: Card) -> list[Json]:
    """Return the sections of a card; one that cannot be made does not cost the others."""
    try:
        return list(await card.sections())
    except ApiError as error:
        return [section(card.title, [], trouble=error.message)]
