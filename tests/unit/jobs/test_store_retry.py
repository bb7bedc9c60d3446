"""Calls of a job that are repeated while the store is away."""

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.jobs.store_retry import StoreRetry


async def test_each_outage_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    retry = StoreRetry(0.0)
    for _ in range(2):
        answers: list[Exception | None] = [*(ApiError(503, "away") for _ in range(5)), None]

        async def call(answers: list[Exception | None] = answers) -> str:
            if error := answers.pop(0):
                raise error
            return "done"

        assert await retry(call) == "done"
    assert caplog.messages == ["response store unavailable, retrying: away"] * 2
