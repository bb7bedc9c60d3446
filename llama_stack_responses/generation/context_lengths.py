"""How long the conversations are that models take."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ..chat.inference import Inference
from ..chat.profile import Profile

_MOST: Final = 1_000
"""Models that are remembered."""

_FRESH: Final = 3_600.0
"""Seconds for which a model server's word holds: it may be started anew with another context."""


class ContextLengths:
    """What is known of models' contexts, in tokens.

    What a model server said when it refused a request counts most, then the model's profile, then what the host knows
    of the model.

    Args:
        clock: seconds.
    """

    def __init__(self, inference: Inference, clock: Callable[[], float] = time.monotonic) -> None:
        self._inference = inference
        self._clock = clock
        self._told: OrderedDict[str, tuple[int, float]] = OrderedDict()

    async def of(self, model: str, profile: Profile) -> int | None:
        """The length of the model's context; None if nobody knows."""
        length, until = self._told.get(model, (0, 0.0))
        if length and self._clock() < until:
            return length
        return profile.context_length or await self._inference.context_length(model)

    def learn(self, model: str, length: int) -> None:
        """Remembers what the model server said."""
        self._told[model] = length, self._clock() + _FRESH
        self._told.move_to_end(model)
        if len(self._told) > _MOST:
            self._told.popitem(last=False)
