"""Servers that are killed again and again, with model rounds and tool calls in flight."""

import pytest

from benchmarks.durability import CI, run

pytestmark = pytest.mark.live


def test_nothing_is_lost_done_twice_or_broken() -> None:
    verdict = run(CI)
    assert verdict.well, verdict
    assert verdict.taken_up > 0
    assert verdict.reconnects > 0
    assert sum(verdict.statuses.values()) == CI.responses
    # Work that ended its server three times is given up; here that is bad luck, and rare.
    assert verdict.statuses["completed"] >= CI.responses - 1
