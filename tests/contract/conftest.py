from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llama_stack_responses.store.records import Records
from tests.contract.backends import BACKENDS, Backend, Clock
from tests.contract.conversations import CREATED


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    chosen: Backend = request.param
    return chosen


@pytest.fixture
def clock() -> Clock:
    return Clock(CREATED)


@pytest.fixture
async def records(backend: Backend, clock: Clock, tmp_path: Path) -> AsyncIterator[Records]:
    opened = backend.open(tmp_path, clock)
    yield opened
    await opened.close()
