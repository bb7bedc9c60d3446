"""Context lengths of models."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ..chat.inference import Inference
from ..chat.profile import Profile
from ..core.lru_cache import LruCache

_MAX_MODELS: Final = 1_000
"""Maximum number of models whose lengths are remembered."""

_VALID_SECONDS: Final = 3_600.0
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
        self._lengths: LruCache[str, tuple[int, float]] = LruCache(_MAX_MODELS)

    async def of(self, model: str, profile: Profile) -> int | None:
        """Return the length of the model's context; None if it is unknown."""
        length, until = self._lengths.get(model) or (0, 0.0)
        if length and self._clock() < until:
            return length
        return profile.context_length or await self._inference.context_length(model)

    def learn(self, model: str, length: int) -> None:
        """Remember the length that the model server named in a refusal."""
        self._lengths.set(model, (length, self._clock() + _VALID_SECONDS))
