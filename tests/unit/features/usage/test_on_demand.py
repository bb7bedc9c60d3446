"""Limits that a stack does not have cost it nothing: what enforces them begins with the first request that has some."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.feature import Stack
from llama_stack_responses.features.usage.limits.on_demand import LimitsOnDemand
from llama_stack_responses.features.usage.settings import Limit, Usage
from llama_stack_responses.generation.activity import Activity
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.store.ends import Ended
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.telemetry.instrumentation import Telemetry
from tests.contract.conversations import response

ADA = Owner("ada", {"teams": ["search"], "keys": ["key_1"]})
LIMITED = Owner("ada", {"keys": ["key_1"], "limits": ["requests_per_minute=1"]})
REQUEST = parse_create({"model": "m", "input": "Hi"})


@asynccontextmanager
async def limited(settings: Usage | None) -> AsyncIterator[LimitsOnDemand]:
    stack = SimpleNamespace(
        records=MemoryRecords(), telemetry=Telemetry(), config=ResponsesConfig(), activity=Activity()
    )
    limits = LimitsOnDemand(cast("Stack", stack), settings)
    limits.start()
    yield limits
    await limits.stop()


def others() -> int:
    """Return the number of tasks that run beside this one."""
    return len(asyncio.all_tasks()) - 1


@pytest.mark.parametrize("settings", [None, Usage()], ids=["no usage", "no limits"])
async def test_request_without_limits_starts_nothing(settings: Usage | None) -> None:
    async with limited(settings) as limits:
        permit = await limits.admit(ADA, REQUEST)
        limits.count(Ended(response(), ADA, None, 1.0))
        permit.release()
        assert (dict(permit.headers), others()) == ({}, 0)


@pytest.mark.parametrize("settings", [None, Usage()], ids=["no usage", "no limits"])
async def test_first_request_with_a_limit_of_its_key_is_within_it(settings: Usage | None) -> None:
    async with limited(settings) as limits:
        permit = await limits.admit(LIMITED, REQUEST)
        assert permit.headers["x-ratelimit-limit-requests"] == "1"
        assert others() == 1
        with pytest.raises(ApiError) as refused:
            await limits.admit(LIMITED, REQUEST)
        assert refused.value.code == "rate_limit_exceeded"
        await limits.admit(ADA, REQUEST)
    assert others() == 0


async def test_limits_of_the_configuration_are_enforced_from_the_start() -> None:
    async with limited(Usage(limits=[Limit(requests_per_minute=1)])) as limits:
        assert others() == 1
        await limits.admit(ADA, REQUEST)
        with pytest.raises(ApiError):
            await limits.admit(ADA, REQUEST)


async def test_only_a_limit_of_stored_bytes_starts_a_recount() -> None:
    async with limited(Usage(limits=[Limit(stored_bytes=1)])):
        assert others() == 2
    async with limited(None) as limits:
        await limits.admit(LIMITED, REQUEST)
        assert others() == 1
        for _ in range(2):
            await limits.admit(Owner("ada", {"keys": ["key_1"], "limits": ["stored_bytes=1000"]}), REQUEST)
        assert others() == 2
    assert others() == 0
