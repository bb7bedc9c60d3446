"""How many tokens a chat request has, by the best that can count it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from ..chat.estimate import estimated_tokens
from ..chat.inference import Inference
from ..chat.profile import Profile, profile_for
from ..chat.tokenizer import open_tokenizer

_LONG: Final = 25_000
"""Estimated tokens, 100 kB of text, beyond which a tokenizer would hold up the event loop."""


class TokenCounts:
    """Counts by the model server's tokenizer, else by that of the model's profile; else it is an estimate.

    Raises:
        ValueError: a profile's tokenizer cannot be had; the text says what to do.
    """

    def __init__(self, inference: Inference, profiles: Sequence[Profile]) -> None:
        self._inference = inference
        self._profiles = profiles
        names = {profile.tokenizer for profile in profiles if profile.tokenizer}
        self._tokenizers = {name: open_tokenizer(name) for name in names}

    async def of(self, chat: dict[str, Any]) -> int:
        """The tokens of a chat request's prompt."""
        counted = await self._inference.count_tokens(chat)
        if counted is not None:
            return counted
        estimate = estimated_tokens(chat)
        name = profile_for(chat["model"], self._profiles).tokenizer
        if name is None:
            return estimate
        tokenizer = self._tokenizers[name]
        if estimate > _LONG:
            return await asyncio.to_thread(estimated_tokens, chat, tokenizer)
        return estimated_tokens(chat, tokenizer)
