"""What operators see of limits that are reached: a metric, and log lines that name the limit."""

from __future__ import annotations

from typing import Final

from ....core.lru_cache import LruCache
from ....core.owner import Owner
from ....generation.owner_names import NameOwner, no_owner
from ....logs import get_logger
from ....telemetry.instrumentation import Telemetry
from ....telemetry.metrics import Metric
from ..settings import Limit

logger = get_logger(__name__)

REACHED: Final = Metric("llama_stack_responses.limits.reached", "{time}", "Times that a limit was reached")

_LOGGED: Final = 20_000
"""Limits of users, teams, keys and models that are remembered as logged."""
_TEAMS: Final = 200
"""Teams with a metric label of their own; further ones are `other`."""
_OTHER: Final = "other"


class Reports:
    """Counts and logs that limits are reached, each by a line in a window.

    Args:
        telemetry: counts.
        name_owner: returns the fields of log lines that name a user.
    """

    def __init__(self, telemetry: Telemetry, name_owner: NameOwner = no_owner) -> None:
        self._telemetry, self._name_owner = telemetry, name_owner
        self._logged: LruCache[tuple[str, ...], float] = LruCache(_LOGGED)
        self._teams: set[str] = set()

    def refused(self, limit: Limit, amount: str, whose: str, owner: Owner, window_end: float) -> None:
        """Report that a request is refused.

        Args:
            limit: the limit.
            amount: the name of what is limited, as settings have it.
            whose: whose use is counted.
            owner: the user of the request.
            window_end: when the line may be written again, in seconds of the clock of windows.
        """
        self._count("refused", limit, amount, owner)
        if self._is_new("refused", limit, amount, whose, window_end):
            logger.warning(
                "limit reached, requests are refused: %s of %s", amount, limit.identity, extra=self._named(owner)
            )

    def nearly(self, limit: Limit, amount: str, whose: str, owner: Owner, window_end: float) -> None:
        """Report that most of a limit is used, once in a window."""
        if self._is_new("warned", limit, amount, whose, window_end):
            self._count("warned", limit, amount, owner)
            logger.warning("limit nearly reached: %s of %s", amount, limit.identity, extra=self._named(owner))

    def cut(self, limit: Limit, amount: str, owner: Owner) -> None:
        """Report that a response that runs is ended."""
        self._count("cut", limit, amount, owner)
        logger.warning("limit reached, ended a response: %s of %s", amount, limit.identity, extra=self._named(owner))

    def _count(self, outcome: str, limit: Limit, amount: str, owner: Owner) -> None:
        labels = {
            "llama_stack_responses.limit": limit.label,
            "llama_stack_responses.amount": amount,
            "llama_stack_responses.team": self._team(owner),
            "llama_stack_responses.outcome": outcome,
        }
        self._telemetry.record(REACHED, labels=labels)

    def _is_new(self, outcome: str, limit: Limit, amount: str, whose: str, window_end: float) -> bool:
        key = (outcome, limit.identity, amount, whose)
        if self._logged.get(key) == window_end:
            return False
        self._logged.set(key, window_end)
        return True

    def _named(self, owner: Owner) -> dict[str, str]:
        return ({"team": owner.team} if owner.team else {}) | self._name_owner(owner)

    def _team(self, owner: Owner) -> str:
        if owner.team not in self._teams:
            if len(self._teams) >= _TEAMS:
                return _OTHER
            self._teams.add(owner.team)
        return owner.team
