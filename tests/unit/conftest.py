"""Fixtures for tests of several parts."""

import pytest

from tests.support.clock import LoopClock


@pytest.fixture
async def loop_clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    """A clock for the test's event loop that can be advanced."""
    return LoopClock(monkeypatch)
