"""Whether the model server of each inference provider answers, while this server runs."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Literal

from ..chat.inference import Inference
from ..intervals import Intervals
from ..logs import get_logger
from .periodic import Periodic

logger = get_logger(__name__)

type Required = Literal["any", "all"] | Collection[str]


class ProviderCheck(Periodic):
    """Asks all providers for their health at intervals, and for readiness, and logs changes.

    Args:
        inference: has the providers.
        required: which providers have to be healthy: any, all, or these.
        intervals: how often to ask, and how long to wait for an answer.

    Attributes:
        states: the last answer of each provider: whether its model server answers; None if it does not report that.
        checked_at: when they were asked last, in seconds since the epoch; None for never.
    """

    def __init__(self, inference: Inference, required: Required, intervals: Intervals) -> None:
        seconds = intervals.provider_check_seconds
        super().__init__(self.check, "could not ask the inference providers for their health", logger, seconds)
        self._inference = inference
        self._required = required
        # A check of readiness has to end in time although a provider does not answer.
        self._wait_seconds = intervals.ready_seconds * 0.75
        self.states: Mapping[str, bool | None] = {}
        self.checked_at: float | None = None

    @property
    def unavailable(self) -> int:
        """The number of providers whose model server does not answer."""
        return sum(state is False for state in self.states.values())

    def up(self) -> dict[str, int]:
        """Return 1 or 0 for each provider that reports its health; callable in any thread."""
        return {name: int(state) for name, state in self.states.items() if state is not None}

    async def check(self) -> None:
        """Ask all of them, and log changes."""
        before, self.states = self.states, await self._inference.health(self._wait_seconds)
        self.checked_at = time.time()
        for name, state in self.states.items():
            if state is False and before.get(name) is not False:
                logger.warning("the model server of the inference provider does not answer: %s", name)
            elif state and before.get(name) is False:
                logger.info("the model server of the inference provider answers again: %s", name)

    async def is_ready(self) -> bool | None:
        """Return whether those that are required answer now; None if no provider reports it."""
        await self.check()
        if not isinstance(self._required, str):
            return all(self.states.get(name) is not False and name in self.states for name in self._required)
        known = [state for state in self.states.values() if state is not None]
        if not known:
            return None
        return all(known) if self._required == "all" else any(known)
