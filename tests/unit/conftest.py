"""What several tests of single parts need."""

import pytest

from tests.support.clock import LoopClock


@pytest.fixture
async def loop_clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    """The clock of the test's event loop, to be put forward."""
    return LoopClock(monkeypatch)
