"""Moderation by checks of texts."""

from __future__ import annotations

from collections.abc import Sequence

from ...concurrency.large_work import LargeWork
from ...core.types import Json
from ...feature import Feature, TextChecker
from ...requests.request import CreateRequest
from .checks import Checks
from .endpoint import Endpoint
from .filter import ModerationFilter
from .policy import policy_of
from .settings import Moderation
from .texts import input_texts


def open_moderation(settings: Moderation, safety: TextChecker | None) -> Feature:
    """Return the moderation by the configured server, or else by this safety provider; there is one of them."""
    moderator = _endpoint(settings) if settings.url else safety
    assert moderator, "nothing moderates"
    checks = Checks(moderator, settings.seconds, settings.held_characters)
    return Feature(moderation=ModerationByChecks(checks), close=moderator.close)


def _endpoint(settings: Moderation) -> Endpoint:
    assert settings.url
    key = settings.api_key.get_secret_value() if settings.api_key else None
    return Endpoint(settings.url, key, settings.model, seconds=settings.seconds)


class ModerationByChecks:
    """Moderates the responses whose requests ask for it.

    Args:
        checks: runs the checks.
    """

    def __init__(self, checks: Checks) -> None:
        self._checks = checks

    async def of_input(self, request: CreateRequest, items: Sequence[Json], large_work: LargeWork) -> Json | None:
        """Check the input, as `Moderation` of `inputs/moderation.py`."""
        policy = policy_of(request)
        if policy is None:
            return None
        variables = (request.prompt or {}).get("variables")
        text = await large_work.run(lambda: "\n\n".join(input_texts(request, items)), items, variables)
        return await self._checks.check_input(policy, text)

    def of_output(self, request: CreateRequest, response: Json) -> ModerationFilter | None:
        """Return the filter of the output."""
        policy, moderation = policy_of(request), response["moderation"]
        return ModerationFilter(self._checks, policy, moderation, response["output"]) if policy and moderation else None
