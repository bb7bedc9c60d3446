"""Programs in real worker processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from tests.unit.features.programs.program_harness import Programs


@pytest.fixture
async def programs() -> AsyncIterator[Programs]:
    pool = WorkerPool(PoolLimits())
    yield Programs(pool)
    await pool.close()
