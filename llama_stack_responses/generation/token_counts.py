"""Token counts of chat requests, by the best available method."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from ..chat.estimate import estimated_tokens
from ..chat.inference import Inference
from ..chat.profile import Profile, profile_for
from ..chat.tokenizer import open_tokenizer
from ..concurrency.offloading import in_thread, in_thread_if_large
from ..core.lru_cache import LruCache

_LONG_TOKENS: Final = 250
"""Estimated tokens (a kilobyte of text) above which a tokenizer runs in a thread: it would block the event loop for
milliseconds."""

_MAX_TOKENS: Final = 2_000_000
"""Estimated tokens above which no tokenizer runs: it would take minutes, and no model has such a context."""


_MAX_MODELS: Final = 1_000
"""Maximum number of models whose usage is remembered."""


class TokenCounts:
    """Counts tokens with the model server's tokenizer, else with that of the model's profile, else by an estimate.

    What model servers report after a request shows how far the estimates are off.

    Raises:
        ValueError: a profile's tokenizer cannot be loaded; the text says what to do.
    """

    def __init__(self, inference: Inference, profiles: Sequence[Profile]) -> None:
        self._inference = inference
        self._profiles = profiles
        names = {profile.tokenizer for profile in profiles if profile.tokenizer}
        self._corrections: LruCache[str, float] = LruCache(_MAX_MODELS)
        self._tokenizers = {name: open_tokenizer(name) for name in names}

    def correction(self, model: str) -> float:
        """Return the tokens that a model's server has last reported for each estimated one; at least 1."""
        return self._corrections.get(model) or 1.0

    def correct(self, model: str, correction: float) -> None:
        """Remember a correction. One below 1 is no reason to send more: some servers do not count what they cached."""
        self._corrections.set(model, max(1.0, correction))

    async def of(self, chat: dict[str, Any]) -> int:
        """Return the number of tokens in a chat request's prompt."""
        counted = await self._inference.count_tokens(chat)
        if counted is not None:
            return counted
        estimate = await in_thread_if_large(partial(estimated_tokens, chat), chat)
        name = profile_for(chat["model"], self._profiles).tokenizer
        if name is None or estimate > _MAX_TOKENS:
            return estimate
        tokenizer = self._tokenizers[name]
        if estimate > _LONG_TOKENS:
            return await in_thread(estimated_tokens, chat, tokenizer)
        return estimated_tokens(chat, tokenizer)
