"""Context lengths of models."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ..chat.inference import Inference
from ..chat.profile import Profile

_MOST: Final = 1_000
"""Most models whose lengths are remembered."""

_FRESH: Final = 3_600.0
"""Seconds for which a length from a refusal is valid: the model server may be restarted with another context."""


class ContextLengths:
    """The known context lengths of models, in tokens.

    A length that the model server named in a refusal has priority over the model's profile, and that over the host's
    data on the model.

    Args:
        inference: provides the host's data on models.
        clock: returns the time in seconds.
    """

    def __init__(self, inference: Inference, clock: Callable[[], float] = time.monotonic) -> None:
        self._inference = inference
        self._clock = clock
        self._lengths: OrderedDict[str, tuple[int, float]] = OrderedDict()

    async def of(self, model: str, profile: Profile) -> int | None:
        """Return the length of the model's context; None if it is unknown."""
        length, until = self._lengths.get(model, (0, 0.0))
        if length and self._clock() < until:
            return length
        return profile.context_length or await self._inference.context_length(model)

    def learn(self, model: str, length: int) -> None:
        """Remember the length that the model server named in a refusal."""
        self._lengths[model] = length, self._clock() + _FRESH
        self._lengths.move_to_end(model)
        if len(self._lengths) > _MOST:
            self._lengths.popitem(last=False)
