"""Fits the requests of one generation to the model's context by leaving out the oldest turns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ..chat.estimate import estimated_tokens
from ..chat.profile import Profile
from ..concurrency.large_work import LargeWork
from ..core.errors import TooLongError
from ..core.types import Json
from ..items.truncation import droppable, without
from ..stream.deltas import Delta, Finish
from ..stream.usage import Usage
from .request_adaptation import ModelServers
from .token_counts import TokenCounts

Make = Callable[[Sequence[Json]], Json]
"""Builds a chat request from items."""

_ESTIMATED_FRACTION: Final = 0.4
"""Fraction of a bound beyond which an estimate is not trusted and the tokens are counted."""

_ANSWER_DIVISOR: Final = 8
"""Divisor: this part of the context is reserved for an answer without a bound on its tokens."""

_INPUT_DIVISOR: Final = 16
"""Divisor: this part of the context is reserved for tokens of an input that a model server has not counted."""

_MIN_TOKENS: Final = 500
"""Tokens from which a reported usage says something about estimates: the template of a short request weighs more."""

_MAX_CORRECTION: Final = 4.0
"""Maximum of tokens for each estimated one: a server that reports more counts something else."""

_AGREEING: Final = 4.0
"""Factor within which a count of a model server and the estimate are of the same request."""

_RETRY_FRACTION: Final = 0.7
"""Bound on the next request after a refusal, as a fraction of the refused one."""


class ContextFit:
    """Builds requests that fit the context.

    Sizes are estimated. Near a bound, the estimates are calibrated once, by a token count or by the numbers in the
    model server's refusal. The usage that it reports for a request corrects those of the next ones.

    Args:
        model: the model's full name.
        profile: the model's profile.
        counts: counts tokens, as exactly as possible.
        servers: knows the lengths of contexts, and how far estimates were off for the model's server.
        large_work: builds large requests.
    """

    __slots__ = (
        "_answer_room",
        "_counts",
        "_estimate",
        "_is_calibrated",
        "_large_work",
        "_last",
        "_max_estimate",
        "_model",
        "_named_length",
        "_profile",
        "_scale",
        "_sent_estimate",
        "_servers",
        "_shorter_answers",
        "_shortest",
    )

    def __init__(
        self,
        model: str,
        profile: Profile,
        counts: TokenCounts,
        servers: ModelServers,
        large_work: LargeWork,
    ) -> None:
        self._model = model
        self._profile = profile
        self._counts = counts
        self._servers = servers
        self._large_work = large_work
        self._scale: float | None = None  # tokens per estimated token
        self._is_calibrated = False
        self._max_estimate: float | None = None  # maximum number of estimated tokens of the next request
        self._named_length: int | None = None  # of the context, by a refusal of a request of this response
        self._last: Json | None = None
        self._estimate: tuple[int, int, int] | None = None  # of the last request: its items, by identity and number
        self._sent_estimate: int | None = None
        self._shortest = False
        self._answer_room: int | None = None
        self._shorter_answers = 0  # how often the bound on the answer was lowered

    async def fit(self, items: Sequence[Json], make: Make, max_tokens: int | None, *, to_answer: bool = True) -> Json:
        """Build the request, without as many of the oldest turns as necessary to fit the context.

        Args:
            items: the conversation.
            make: builds the request.
            max_tokens: maximum number of tokens of the answer; None for no bound.
            to_answer: whether the model is to answer the user's newest message, which is then never left out.
        """
        chat = await self.whole(items, make)
        self._shortest = False
        room = await self.room(max_tokens)
        if room is not None and await self._tokens_of(items, chat, room) > room:
            self._sent_estimate = None
            max_estimate = room / (self._scale or 1)

            def shortened() -> Json:
                return self._shortened(items, droppable(items, to_answer=to_answer), make, max_estimate)

            self._last = chat = await self._large_work.run(shortened, items)
        return chat

    async def whole(self, items: Sequence[Json], make: Make) -> Json:
        """Build the request from all items, and record it as the one that is sent next."""
        self._last = chat = await self._large_work.run(partial(make, items), items)
        *of, estimate = self._estimate or (0, 0, 0)
        self._sent_estimate = estimate if of == [id(items), len(items)] else None
        return chat

    async def exceeds(self, items: Sequence[Json], make: Make, bound: float) -> bool:
        """Return whether the request from all items, which is not sent, has more tokens than the bound."""
        chat = await self._large_work.run(partial(make, items), items)
        return await self._tokens_of(items, chat, bound) > bound

    def drop_request(self) -> None:
        """Drop the request that was sent last, which would be held until the end of its answer."""
        self._last = None

    async def room(self, max_tokens: int | None) -> float | None:
        """Return the tokens that a request may have without the answer; None if no bound is known."""
        max_estimate = None if self._max_estimate is None else self._max_estimate * (self._scale or 1)
        length = await self._length()
        if length is None:
            return max_estimate
        room = length - (length // _ANSWER_DIVISOR if max_tokens is None else min(max_tokens, length // 2))
        return room if max_estimate is None else min(room, max_estimate)

    async def _length(self) -> int | None:
        """Return the tokens of the context, as a refusal of this response has named them, or as they are known."""
        return self._named_length or await self._servers.context_length(self._model, self._profile)

    async def tokens(self, chat: Json, bound: float) -> float:
        """Return the tokens of a request: estimated, but calibrated by a count if the estimate is near the bound."""
        return await self._corrected(chat, await self._estimated(chat), bound)

    async def _tokens_of(self, items: Sequence[Json], chat: Json, bound: float) -> float:
        """Return the tokens of a request from these items, as `tokens`, and note its estimate for `note_usage`."""
        estimate = await self._estimated(chat)
        self._estimate = id(items), len(items), estimate
        self._sent_estimate = estimate
        return await self._corrected(chat, estimate, bound)

    async def _corrected(self, chat: Json, estimate: int, bound: float) -> float:
        correction = await self._servers.correction(self._model)
        if self._scale is None and estimate * correction > bound * _ESTIMATED_FRACTION:
            self._scale = max(await self._counts.of(chat) / estimate, correction)
        return estimate * (self._scale or correction)

    def note_usage(self, usage: Usage) -> None:
        """Note what the model server reports about the request that was sent last."""
        self._servers.took(self._model, usage.input_tokens)
        estimate, self._sent_estimate = self._sent_estimate, None
        if not estimate or usage.input_tokens < _MIN_TOKENS:
            return
        correction = min(usage.input_tokens / estimate, _MAX_CORRECTION)
        self._servers.correct(self._model, correction)
        if correction > (self._scale or 1):
            self._scale = correction

    def answer_tokens(self, max_tokens: int | None) -> int | None:
        """Return the maximum number of tokens of an answer for which the context has room.

        Args:
            max_tokens: the maximum without that; None for no bound.
        """
        return max_tokens if max_tokens is None or self._answer_room is None else min(max_tokens, self._answer_room)

    def shorten_answer(self, refusal: TooLongError, max_tokens: int | None) -> bool:
        """Return whether a request that was refused as too long may be sent again with a lower bound on its answer.

        That is so if its input has room in the context, and leaves as much for an answer as is reserved without a
        bound. A model server that adds both may say that the context is exceeded (vLLM, Anthropic).

        Args:
            refusal: the model server's error.
            max_tokens: as for `answer_tokens`.
        """
        bound = self.answer_tokens(max_tokens)
        if bound is None or refusal.length is None or refusal.tokens is None:
            return False
        # vLLM stops counting at its bound ("contains at least"): each further refusal leaves the input more room.
        reserve = (2**self._shorter_answers - 1) * refusal.length // _INPUT_DIVISOR
        room = refusal.length - refusal.tokens - reserve
        if not refusal.length // _ANSWER_DIVISOR <= room < bound:
            return False
        self._answer_room = room
        self._shorter_answers += 1
        return True

    async def shorten(self, refusal: TooLongError) -> bool:
        """Adjust the bounds after the last request was refused; return whether the next one can be shorter."""
        sent = await self._estimated(self._last) if self._last is not None else 0
        if refusal.length:
            self._named_length = refusal.length
            agrees = refusal.tokens is not None and _agree(refusal.tokens, sent)
            await self._servers.learn_context_length(self._model, refusal.length, agrees=agrees)
        if self._shortest or self._last is None:
            return False
        if refusal.length and refusal.tokens and not self._is_calibrated:
            self._is_calibrated, self._scale = True, refusal.tokens / sent
        else:
            self._max_estimate = sent * _RETRY_FRACTION
        return True

    async def check_room(self, rest: Sequence[Delta], written: int) -> None:
        """Check the end of a round: some servers end an answer that has no room in the context, and refuse nothing.

        Args:
            rest: the last deltas of the round.
            written: the characters that the model has written.

        Raises:
            TooLongError: the request has filled the model's context.
        """
        last = rest[-1]
        if written or not isinstance(last, Finish) or last.reason != "length":
            return
        tokens, used = last.usage.input_tokens, last.usage.input_tokens + last.usage.output_tokens
        length = await self._length()
        if tokens and length and used >= length:
            message = (
                f"The model's context of {length} tokens has no room for an answer: the input has {tokens} tokens. "
                f"Shorten the input, or set 'truncation' to 'auto'."
            )
            raise TooLongError(message, length=length, tokens=tokens)

    async def _estimated(self, chat: Json) -> int:
        return await self._large_work.run(partial(estimated_tokens, chat), chat)

    def _shortened(self, items: Sequence[Json], parts: list[list[int]], make: Make, max_estimate: float) -> Json:
        """Build the longest request of at most `max_estimate` estimated tokens by leaving out `parts` in order.

        If even the request without all parts is longer, return that one.
        """

        def shortened(count: int) -> Json:
            return make(without(items, parts[:count]))

        fits = bisect_left(
            range(len(parts)), True, key=lambda count: estimated_tokens(shortened(count)) <= max_estimate
        )
        self._shortest = fits == len(parts)
        return shortened(fits)


def _agree(tokens: int, estimate: int) -> bool:
    """Return whether a number of tokens may be that of a request of so many estimated ones."""
    return estimate / _AGREEING <= tokens <= estimate * _AGREEING
