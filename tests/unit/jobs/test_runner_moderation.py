"""Moderated output is held back by every worker that runs the job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

import pytest

from tests.support.inference import Round, finish, text
from tests.support.leases import requeue_stalled
from tests.support.moderation import AWAY, FakeModerator
from tests.support.records import WatchedRecords
from tests.support.waiting import turns
from tests.unit.jobs.harness import ID, PATIENCE, ROUNDS, ProcessHarness

type Json = dict[str, Any]

BAD: Final[Round] = [text("All is well. "), text("A bad"), text(" thing, and more of it."), finish(tokens=7)]
STRUCK: Final[Sequence[Round]] = (*ROUNDS[:2], BAD)
MODERATION: Final = {"model": "m", "policy": {"input": {"mode": "block"}, "output": {"mode": "block"}}}


async def taken_over(records: WatchedRecords, rounds: Sequence[Round], steps: int, **fields: Any) -> tuple[Json, str]:
    """Lose the first worker after `steps` iterations of the loop. Return the response and all that a reader saw."""
    first = ProcessHarness(records, *rounds)
    await first.submit(first.background_jobs(), moderation=MODERATION, **fields)
    reader = asyncio.create_task(first.read())
    task = asyncio.create_task(first.runner(await first.claim("dies")).run())
    await turns(steps)
    task.cancel()
    await asyncio.wait([task])
    if checkpoint := await first.jobs.checkpoint(ID):
        await requeue_stalled(first.jobs)
        await ProcessHarness(records, *rounds[checkpoint.rounds :]).run_job("lives")
    async with asyncio.timeout(PATIENCE):
        return await first.result(taken_over=True), json.dumps(await reader)


@pytest.mark.parametrize("steps", range(1, 90, 4))
async def test_blocked_output_is_never_read_despite_lost_worker(records: WatchedRecords, steps: int) -> None:
    final, seen = await taken_over(records, STRUCK, steps)
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert final["output"][-1]["content"][-1]["type"] == "refusal"
    assert final["moderation"]["output"]["flagged"]
    assert "A bad" not in seen


@pytest.mark.parametrize("steps", range(1, 90, 4))
async def test_unflagged_output_completes_despite_lost_worker(records: WatchedRecords, steps: int) -> None:
    final, _ = await taken_over(records, ROUNDS, steps)
    assert final["status"] == "completed"
    assert final["moderation"]["output"]["category_scores"] == {"badness": 0.1}


@pytest.mark.parametrize("steps", range(1, 30, 2))
async def test_blocked_input_is_refused_despite_lost_worker(records: WatchedRecords, steps: int) -> None:
    final, _ = await taken_over(records, [], steps, input="Something bad")
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert final["output"][-1]["content"][-1]["type"] == "refusal"
    assert final["moderation"]["input"]["flagged"]


async def test_moderator_outage_fails_job_and_keeps_checked_output(records: WatchedRecords) -> None:
    moderator = FakeModerator({2: AWAY})
    harness = ProcessHarness(records, BAD, moderator=moderator)
    await harness.submit(harness.background_jobs(), moderation=MODERATION)
    await harness.run_job()
    final = await harness.result()
    assert (final["status"], final["error"]["message"]) == ("failed", "The moderator is away.")
    assert final["output"][0]["content"][0]["text"] == "All is well. "
    assert final["moderation"]["output"]["code"] == "not_moderated"
    assert harness.inference.closed == 1
