"""How many requests of a model a server has under way, if the settings say so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ...concurrency.fair_budget import FairBudget


class ModelSlots:
    """Slots of models with a limit; users take turns.

    Args:
        limit_of: returns how many slots a model has; None for no limit.
    """

    def __init__(self, limit_of: Callable[[str], int | None]) -> None:
        self._limit_of = limit_of
        self._slots: dict[str, FairBudget] = {}

    @asynccontextmanager
    async def hold(self, model: str) -> AsyncIterator[None]:
        """Hold a slot of a model during the block, and wait until one is free."""
        if (limit := self._limit_of(model)) is None:
            yield
            return
        slots = self._slots.setdefault(model, FairBudget(limit))
        try:
            async with slots.hold(1):
                yield
        finally:
            # Users choose the names.
            if slots.is_idle and not slots.waiting:
                self._slots.pop(model, None)
