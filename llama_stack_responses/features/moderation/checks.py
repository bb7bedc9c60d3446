"""Check texts in pieces, several at a time, with a timeout for each check."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import batched
from typing import Final

from ...concurrency.tasks import gather_or_cancel
from ...core.errors import ApiError
from ...core.moderation_results import NO_OUTPUT, NOT_YET, Side, result
from ...core.types import Json
from ...feature import TextChecker
from ...logs import get_logger
from .policy import Policy
from .results import failure, merged

logger = get_logger(__name__)

PIECE_CHARACTERS: Final = 8_000
"""Maximum characters of one check: the context of a small moderation model."""

_OVERLAP_CHARACTERS: Final = 400
"""Characters that two pieces share, so that text at a boundary is complete in at least one check."""

_CHECKS_PER_BATCH: Final = 8


@dataclass(frozen=True, slots=True)
class Checks:
    """Runs moderation checks.

    Attributes:
        moderator: checks the texts.
        seconds: timeout of one check.
        held_characters: characters of an answer in `block` mode that are held until they are checked.
    """

    moderator: TextChecker
    seconds: float
    held_characters: int

    async def check_input(self, policy: Policy, text: str) -> Json:
        """Check a response's input, and return its `moderation`.

        Args:
            text: the texts of the request.

        Raises:
            ApiError: the named model or guardrail does not exist; or the check failed in `block` mode.
        """
        moderation = await self.scored(policy, text, "input")
        is_refused = policy.input == "block" and moderation["type"] == "moderation_result" and moderation["flagged"]
        return {"input": moderation, "output": NO_OUTPUT if is_refused else NOT_YET}

    async def scored(self, policy: Policy, text: str, side: Side) -> Json:
        """Return the merged result of all checks of a text; in `score` mode, `failure` if the server failed."""
        try:
            return await self.check(policy, text, side)
        except ApiError as error:
            mode = policy.input if side == "input" else policy.output
            if mode == "block" or error.status < 500:
                raise
            logger.warning("could not moderate the %s of a response: %s", side, error)
            return failure(error)

    async def check(self, policy: Policy, text: str, side: Side) -> Json:
        """Return the merged result of all checks of a text.

        Raises:
            ApiError: one of them failed.
        """
        if not text or text.isspace():
            return merged([result(name or "default", {}, flagged=False) for name in policy.names])
        results: list[Json] = []

        async def one(name: str | None, piece: str) -> None:
            results.append(await self._one(policy, name, piece, side))

        for some in batched(((name, piece) for piece in _pieces(text) for name in policy.names), _CHECKS_PER_BATCH):
            await gather_or_cancel(one(*each) for each in some)
        return merged(results)

    async def _one(self, policy: Policy, name: str | None, text: str, side: Side) -> Json:
        try:
            async with asyncio.timeout(self.seconds):
                return await self.moderator.check(policy.kind, name, text, side)
        except TimeoutError:
            message = f"The moderation did not answer within {self.seconds:g} seconds, so the check did not finish."
            raise ApiError(504, message) from None


def _pieces(text: str) -> Iterator[str]:
    yield text[:PIECE_CHARACTERS]
    for end in range(PIECE_CHARACTERS, len(text), PIECE_CHARACTERS - _OVERLAP_CHARACTERS):
        yield text[end - _OVERLAP_CHARACTERS : end - _OVERLAP_CHARACTERS + PIECE_CHARACTERS]
