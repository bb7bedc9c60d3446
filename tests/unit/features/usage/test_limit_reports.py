"""Operators see who is limited: a metric without users, and a log line for each limit and window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.usage.limits.limiter import Limiter
from llama_stack_responses.features.usage.limits.reports import Reports
from llama_stack_responses.features.usage.prices import Prices
from llama_stack_responses.features.usage.settings import Limit
from llama_stack_responses.generation.activity import Activity
from llama_stack_responses.generation.owner_names import name_owner
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.exported_telemetry import ExportedTelemetry

ADA = Owner("ada", {"teams": ["search"]})
PREFIX = "llama_stack_responses."
REFUSED = "limit reached, requests are refused"


class Limited:
    """A server with limits, and what it reports."""

    def __init__(self, *limits: Limit) -> None:
        self._watched = ExportedTelemetry()
        reports = Reports(self._watched.telemetry, name_owner("named"))
        self._limiter = Limiter(MemoryRecords(), limits, Prices((), "usd"), reports, Activity())

    async def ask(self, owner: Owner = ADA, requests: int = 1) -> list[bool]:
        """Return which requests were admitted."""
        return [await self._admitted(owner) for _ in range(requests)]

    async def _admitted(self, owner: Owner) -> bool:
        try:
            await self._limiter.admit(owner, parse_create({"model": "m", "input": "Hi"}))
        except ApiError:
            return False
        return True

    def counted(self) -> list[tuple[Mapping[str, Any], float]]:
        """Return the values of the metric, with their labels."""
        return [
            ({name.removeprefix(PREFIX): label for name, label in labels.items()}, value)
            for labels, _, value in self._watched.points()[f"{PREFIX}limits.reached"]
        ]


async def test_refusals_are_counted_by_limit_amount_and_team_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Limited(Limit(name="trial", requests_per_minute=2, warn_at=1.0))
    assert await server.ask(requests=5) == [True, True, False, False, False]
    labels = {"limit": "trial", "amount": "requests_per_minute", "team": "search"}
    assert server.counted() == [(labels | {"outcome": "warned"}, 1), (labels | {"outcome": "refused"}, 3)]
    [line] = [each for each in caplog.records if REFUSED in each.message]
    assert line.message.endswith("requests_per_minute of trial")
    assert (vars(line)["team"], vars(line)["owner"]) == ("search", "ada")


async def test_running_responses_over_the_limit_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    server = Limited(Limit(running=1))
    assert await server.ask(requests=3) == [True, False, False]
    labels = {"limit": "user * of *", "amount": "running", "team": "search", "outcome": "refused"}
    assert server.counted() == [(labels, 2)]
    assert caplog.text.count(REFUSED) == 1


async def test_each_user_of_a_limit_is_logged_and_names_no_label(caplog: pytest.LogCaptureFixture) -> None:
    server = Limited(Limit(requests_per_minute=1))
    for name in ("ada", "bob", "ada", "bob"):
        await server.ask(Owner(name), 2)
    assert caplog.text.count(REFUSED) == 2
    assert not any(name in str(server.counted()) for name in ("ada", "bob"))


async def test_limits_of_keys_share_a_label() -> None:
    server = Limited()
    for key in ("key_1", "key_2"):
        await server.ask(Owner("ada", {"keys": [key], "limits": ["requests_per_minute=1"]}), 2)
    assert {labels["limit"] for labels, _ in server.counted()} == {"key"}


async def test_teams_beyond_a_bound_share_a_label() -> None:
    server = Limited(Limit(by="all", requests_per_minute=1, enforced=True))
    for number in range(300):
        await server.ask(Owner("ada", {"teams": [f"team {number}"]}))
    teams = {labels["team"] for labels, _ in server.counted()}
    assert len(teams) == 201
    assert "other" in teams
