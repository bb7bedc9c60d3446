"""How the requests of one response are made to fit their model's context: the oldest turns are left out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final

from ..chat.estimate import estimated_tokens
from ..chat.profile import Profile
from ..core.errors import TooLongError
from ..core.truncation import droppable, without
from .context_lengths import ContextLengths
from .token_counts import TokenCounts

Json = dict[str, Any]
Make = Callable[[Sequence[Json]], Json]
"""Makes a chat request of items."""

_NEAR: Final = 0.4
"""Of a bound: an estimate beyond that may be too low, so the tokens are counted where they can be."""

_FOR_THE_ANSWER: Final = 8
"""One part in so many of a context is left for an answer of which it is not known how long it may be."""

_SHORTER: Final = 0.7
"""Of a refused request, the next has at most so much."""


class Fitting:
    """Makes requests that fit.

    Sizes are estimated. Near a bound, the estimates are corrected once by a count, or by what the model server says
    when it refuses.

    Args:
        model: the model's whole name.
        counts: counts more exactly than an estimate, where it can.
        lengths: what is known of models' contexts.
    """

    def __init__(self, model: str, profile: Profile, counts: TokenCounts, lengths: ContextLengths) -> None:
        self._model = model
        self._profile = profile
        self._counts = counts
        self._lengths = lengths
        self._scale: float | None = None  # tokens for each that was estimated
        self._told = False
        self._most: float | None = None  # estimated tokens of the next request, at most
        self._last: Json = {"messages": []}
        self._shortest = False

    async def fit(self, items: Sequence[Json], make: Make, max_tokens: int | None, *, to_answer: bool = True) -> Json:
        """The request that `make` makes of the items, or of those that are left when the oldest turns are not.

        Args:
            max_tokens: what the answer may have, or None.
            to_answer: whether the user's newest message is to be answered, and stays in any case.
        """
        chat = make(items)
        self._shortest = False
        room = await self.room(max_tokens)
        if room is not None and await self.tokens(chat, room) > room:
            chat = self._shortened(items, droppable(items, to_answer=to_answer), make, room / (self._scale or 1))
        return self.leave(chat)

    def leave(self, chat: Json) -> Json:
        """Takes note of a request that is sent."""
        self._last = chat
        return chat

    async def room(self, max_tokens: int | None) -> float | None:
        """The tokens that a request may have, so that the answer has its place; None if that is not known."""
        most = None if self._most is None else self._most * (self._scale or 1)
        length = await self._lengths.of(self._model, self._profile)
        if length is None:
            return most
        room = length - (length // _FOR_THE_ANSWER if max_tokens is None else min(max_tokens, length // 2))
        return room if most is None else min(room, most)

    async def tokens(self, chat: Json, bound: float | None) -> float:
        """The tokens of a request: estimated, and near the bound as exact as can be."""
        estimate = estimated_tokens(chat)
        if self._scale is None and bound is not None and estimate > bound * _NEAR:
            self._scale = await self._counts.of(chat) / estimate
        return estimate * (self._scale or 1)

    def shorten(self, refusal: TooLongError) -> bool:
        """Learns from a refusal of the last request; whether the next one will be shorter."""
        if refusal.length:
            self._lengths.learn(self._model, refusal.length)
        if self._shortest:
            return False
        sent = estimated_tokens(self._last)
        if refusal.length and refusal.tokens and not self._told:
            self._told, self._scale = True, refusal.tokens / sent
        else:
            self._most = sent * _SHORTER
        return True

    def _shortened(self, items: Sequence[Json], parts: list[list[int]], make: Make, most: float) -> Json:
        """The request of as many items as have no more than `most` estimated tokens; `parts` go first to last."""

        def made(count: int) -> Json:
            return make(without(items, parts[:count]))

        fits = bisect_left(range(len(parts)), True, key=lambda count: estimated_tokens(made(count)) <= most)
        self._shortest = fits == len(parts)
        return made(fits)
