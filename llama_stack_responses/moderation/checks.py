"""Texts are checked in pieces, several at a time, and each check within a bound on time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import batched
from typing import Any, Final

from llama_stack_responses.concurrency import at_once
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.moderation import NO_OUTPUT, NOT_YET, Policy, Side, failure, merged, result
from llama_stack_responses.logs import get_logger

from .moderator import Moderator

Json = dict[str, Any]

logger = get_logger(__name__)

PIECE: Final = 8_000
"""Characters that one check gets, at most: the context of a small model that checks."""

_OVERLAP: Final = 400
"""Characters that two pieces share, so that what stands between them is seen by one."""

_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Checks:
    """Has texts checked.

    Attributes:
        moderator: who checks.
        seconds: how long one check may take.
        held: characters of an answer that is to be blocked if need be, that are held until they are checked.
    """

    moderator: Moderator
    seconds: float
    held: int

    async def of_input(self, policy: Policy, texts: Iterable[str]) -> Json:
        """A response's `moderation`, once its input is checked.

        Args:
            texts: what the request brings.

        Raises:
            ApiError: there is nobody of this name; or the check failed, and what is not checked is to be blocked.
        """
        found = await self.scored(policy, "\n\n".join(texts), "input")
        is_refused = policy.input == "block" and found["type"] == "moderation_result" and found["flagged"]
        return {"input": found, "output": NO_OUTPUT if is_refused else NOT_YET}

    async def scored(self, policy: Policy, text: str, side: Side) -> Json:
        """What all checks say of a text; where it is only to be told, a failure takes the place of that."""
        try:
            return await self.check(policy, text, side)
        except ApiError as error:
            mode = policy.input if side == "input" else policy.output
            if mode == "block" or error.status < 500:
                raise
            logger.warning("the %s of a response was not moderated: %s", side, error)
            return failure(error)

    async def check(self, policy: Policy, text: str, side: Side) -> Json:
        """What all checks say of a text, together.

        Raises:
            ApiError: one of them could not say anything.
        """
        if not text.strip():
            return merged([result(name or "default", {}, flagged=False) for name in policy.names])
        results: list[Json] = []

        async def one(name: str | None, piece: str) -> None:
            results.append(await self._one(policy, name, piece, side))

        for some in batched(((name, piece) for piece in _pieces(text) for name in policy.names), _AT_ONCE):
            await at_once(one(*each) for each in some)
        return merged(results)

    async def _one(self, policy: Policy, name: str | None, text: str, side: Side) -> Json:
        try:
            async with asyncio.timeout(self.seconds):
                return await self.moderator.check(policy.kind, name, text, side)
        except TimeoutError:
            message = f"The moderation did not answer within {self.seconds:g} seconds, so nothing was checked."
            raise ApiError(504, message) from None


def _pieces(text: str) -> Iterator[str]:
    yield text[:PIECE]
    for end in range(PIECE, len(text), PIECE - _OVERLAP):
        yield text[end - _OVERLAP : end - _OVERLAP + PIECE]
