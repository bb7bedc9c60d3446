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

_LONG_TOKENS: Final = 250
"""Estimated tokens (a kilobyte of text) above which a tokenizer runs in a thread: it would block the event loop for
milliseconds."""

_MAX_TOKENS: Final = 2_000_000
"""Estimated tokens above which no tokenizer runs: it would take minutes, and no model has such a context."""


class TokenCounts:
    """Counts tokens with the model server's tokenizer, else with that of the model's profile, else by an estimate.

    Raises:
        ValueError: a profile's tokenizer cannot be loaded; the text says what to do.
    """

    def __init__(self, inference: Inference, profiles: Sequence[Profile]) -> None:
        self._inference = inference
        self._profiles = profiles
        names = {profile.tokenizer for profile in profiles if profile.tokenizer}
        self._tokenizers = {name: open_tokenizer(name) for name in names}

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
