"""Workers that hurry, and a store of their own for each test."""

from __future__ import annotations

import pytest

from llama_stack_responses.jobs import event_log as journal
from llama_stack_responses.jobs import runner as attempt
from tests.support.records import WatchedRecords
from tests.unit.jobs.office import shared


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between two batches, two tries, or two looks."""
    monkeypatch.setattr(attempt, "_PAUSE", 0.0)
    monkeypatch.setattr(attempt, "RETRY", 0.0)
    monkeypatch.setattr(journal, "_POLL", 0.001)


@pytest.fixture
def records() -> WatchedRecords:
    """Records in this process."""
    return shared()
