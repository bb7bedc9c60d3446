"""Servers that are killed repeatedly during model rounds and tool calls."""

import pytest

from benchmarks.durability import CI, CI_CLUSTER, CI_SQLITE, Plan, run

# Jobs and the store do not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.one_host]


@pytest.mark.parametrize(
    "plan",
    [pytest.param(plan, marks=pytest.mark.day(day)) for plan, day in ((CI, 0), (CI_SQLITE, 3), (CI_CLUSTER, 4))],
    ids=lambda plan: plan.store,
)
def test_repeated_kills_lose_and_duplicate_no_responses(plan: Plan) -> None:
    verdict = run(plan)
    assert verdict.well, verdict
    assert verdict.taken_up > 0
    assert verdict.reconnects > 0
    assert sum(verdict.statuses.values()) == plan.responses
    # A job whose server died three times is failed. With random kills, that is rare.
    assert verdict.statuses["completed"] >= plan.responses - 1
