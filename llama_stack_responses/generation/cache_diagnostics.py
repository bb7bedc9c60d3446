"""Explain why a model server's prompt cache could not reuse the prompt of another response.

Source: https://developers.openai.com/api/docs/guides/prompt-caching/diagnostics
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ..chat.profile import Profile
from ..chat.prompt_comparison import Difference, Prompt, first_difference
from ..concurrency.large_work import LargeWork
from ..core.errors import ApiError
from ..core.owner import Owner
from ..core.types import Json
from ..inputs.history import Hold, StoredPrompt
from .timeline import round_fields

PromptOf = Callable[[str, Owner, Hold | None], Awaitable[StoredPrompt | None]]
"""Returns the prompt of an owner's stored response; None if there is no such response."""


async def no_prompt(_: str, __: Owner, ___: Hold | None = None) -> None:
    """Return no prompt: no response is stored."""


_REUSED: Final = 0.9
"""The part of a prompt from which on it counts as reused: caches keep whole blocks of tokens."""


@dataclass(frozen=True, slots=True)
class FirstPrompt:
    """The prompt of a response's first answer, as the model server counted it.

    Attributes:
        input_tokens: its tokens; 0 if they were not reported.
        cached_tokens: those of them that were read from a cache.
        compacted: whether the conversation was compacted before.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    compacted: bool = False

    @classmethod
    def of(cls, rounds: Iterable[Sequence[Any]]) -> FirstPrompt:
        """Return the prompt of the first of the recorded rounds that was answered."""
        compacted = False
        for fields in map(round_fields, rounds):
            kind, tokens = fields.get("kind"), fields.get("input_tokens")
            if kind == "answer" and tokens:
                return cls(tokens, fields["cached_tokens"], compacted)
            compacted = compacted or kind == "compaction"
        return cls(compacted=compacted)


class CacheDiagnostics:
    """Compares the prompt of a response with that of another one.

    Args:
        response_id: the other response.
        owner: the owner of both.
        prompt_of: reads the prompt of the other response.
        profile: the profile of the response's model.
        large_work: compares large conversations.
        hold: called with the number of bytes that are about to be held; it may raise.
    """

    __slots__ = ("_hold", "_large_work", "_owner", "_profile", "_prompt_of", "_response_id")

    def __init__(
        self,
        response_id: str,
        owner: Owner,
        prompt_of: PromptOf,
        profile: Profile,
        large_work: LargeWork,
        hold: Hold,
    ) -> None:
        self._response_id = response_id
        self._owner = owner
        self._prompt_of = prompt_of
        self._profile = profile
        self._large_work = large_work
        self._hold = hold

    async def of(self, response: Json, items: Sequence[Json], rounds: Iterable[Sequence[Any]]) -> Json:
        """Return the `prompt_cache_diagnostics` of a response; `unavailable` if the prompts cannot be compared.

        Args:
            response: the response at its end.
            items: its history and input.
            rounds: its recorded rounds.
        """
        try:
            compared = await self._prompt_of(self._response_id, self._owner, self._hold)
            if compared is None:
                return {"type": "comparison_response_not_found"}
            if compared.prompt.response["status"] not in ("completed", "incomplete"):
                return {"type": "unavailable"}
            return await self._compared(Prompt(response, items), compared, FirstPrompt.of(rounds))
        except ApiError:
            # The store is unavailable, or the user holds too much: the response itself is not affected.
            return {"type": "unavailable"}

    async def _compared(self, prompt: Prompt, compared: StoredPrompt, used: FirstPrompt) -> Json:
        work = partial(first_difference, prompt, compared.prompt, self._profile, compacted=used.compacted)
        around = prompt.response["tools"], prompt.response["instructions"]
        difference = await self._large_work.run(work, around, prompt.items, compared.prompt.items)
        return _diagnosis(difference, used, FirstPrompt.of(compared.rounds).input_tokens)


def _diagnosis(difference: Difference | None, used: FirstPrompt, reusable: int) -> Json:
    """Return the diagnosis; what the model server reports decides where it contradicts the comparison.

    Args:
        difference: the first difference of the prompts.
        used: the prompt of the response.
        reusable: the tokens of the other response's prompt; 0 if they are unknown.
    """
    if used.cached_tokens and (difference is None or 0 < reusable * _REUSED <= used.cached_tokens):
        return {"type": "cache_hit"}
    if difference is None:
        return {"type": "unavailable"}
    tokens = used.input_tokens or difference.tokens
    missed = round(tokens * (1 - difference.shared))
    miss: Json = {"type": "cache_miss", "reason": difference.reason, "cache_missed_tokens": missed}
    return miss | {"comparison_reusable_tokens": reusable} if reusable else miss
