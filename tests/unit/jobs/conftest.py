"""A separate store for each test."""

from __future__ import annotations

import pytest

from tests.support.records import WatchedRecords
from tests.unit.jobs.harness import shared


@pytest.fixture
def records() -> WatchedRecords:
    """Return records in this process."""
    return shared()
