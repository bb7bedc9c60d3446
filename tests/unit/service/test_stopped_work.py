"""A server that stops gives up what has not begun, so that another one can do it, and fails what has begun."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, Final

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, finish, text
from tests.support.waiting import turns, until
from tests.unit.service.test_short_requests import server

BODY: Final = {"model": "m", "input": "Hello"}
CONFIG: Final = ResponsesConfig.model_validate({"model_servers": {"fake": {"concurrency": 1}}})


@pytest.mark.parametrize("begun", [True, False])
async def test_compaction_that_waits_for_its_model_server_is_refused_as_not_begun(*, begun: bool) -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)
    endless: Any = [text("Hello"), asyncio.Event(), finish()]
    inference = FakeInference(endless)
    impl = server(MemoryRecords(), inference, SingleUserAccess(), config=CONFIG)
    impl.start()
    if not begun:
        assert isinstance(await impl.create(dict(BODY)), ForegroundRun)
        await until(lambda: len(inference.requests) == 1)
    compaction = asyncio.create_task(impl.compaction.compact(dict(BODY)))
    await until(lambda: len(inference.requests) == 1)
    await turns(50)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(ApiError) as given_up:
        await compaction
    assert (given_up.value.status, given_up.value.code) == ((503, None) if begun else (421, "server_stopping"))
    assert len(inference.requests) == 1
    await impl.shutdown()
