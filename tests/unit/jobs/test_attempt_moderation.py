"""What is to be held back is held back whichever worker makes the response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

import pytest

from tests.support.inference import Round, finish, text
from tests.support.moderation import AWAY, FakeModerator
from tests.support.records import WatchedRecords
from tests.unit.jobs.office import ID, PATIENCE, ROUNDS, Office, turns

type Json = dict[str, Any]

pytestmark = pytest.mark.usefixtures("hurried")

BAD: Final[Round] = [text("All is well. "), text("A bad"), text(" thing, and more of it."), finish(tokens=7)]
STRUCK: Final[Sequence[Round]] = (*ROUNDS[:2], BAD)
MODERATION: Final = {"model": "m", "policy": {"input": {"mode": "block"}, "output": {"mode": "block"}}}


async def taken_over(records: WatchedRecords, rounds: Sequence[Round], steps: int, **fields: Any) -> tuple[Json, str]:
    """A response whose first worker dies after so many turns, and all that a reader has seen of it."""
    first = Office(records, *rounds)
    await first.submit(first.crew(), moderation=MODERATION, **fields)
    reader = asyncio.create_task(first.read())
    task = asyncio.create_task(first.attempt(await first.claim("dies")).run())
    await turns(steps)
    task.cancel()
    await asyncio.wait([task])
    if work := await first.jobs.work(ID):
        await first.jobs.rescue()
        await Office(records, *rounds[work.rounds :]).work("lives")
    async with asyncio.timeout(PATIENCE):
        return await first.result(), json.dumps(await reader)


@pytest.mark.parametrize("steps", range(1, 90, 4))
async def test_an_output_that_is_blocked(records: WatchedRecords, steps: int) -> None:
    final, seen = await taken_over(records, STRUCK, steps)
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert final["output"][-1]["content"][-1]["type"] == "refusal"
    assert final["moderation"]["output"]["flagged"]
    assert "A bad" not in seen


@pytest.mark.parametrize("steps", range(1, 90, 4))
async def test_an_output_that_is_not(records: WatchedRecords, steps: int) -> None:
    final, _ = await taken_over(records, ROUNDS, steps)
    assert final["status"] == "completed"
    assert final["moderation"]["output"]["category_scores"] == {"badness": 0.1}


@pytest.mark.parametrize("steps", range(1, 30, 2))
async def test_an_input_that_is_blocked(records: WatchedRecords, steps: int) -> None:
    final, _ = await taken_over(records, [], steps, input="Something bad")
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert final["output"][-1]["content"][-1]["type"] == "refusal"
    assert final["moderation"]["input"]["flagged"]


async def test_a_moderator_that_goes_away(records: WatchedRecords) -> None:
    moderator = FakeModerator({2: AWAY})
    office = Office(records, BAD, moderator=moderator)
    await office.submit(office.crew(), moderation=MODERATION)
    await office.work()
    final = await office.result()
    assert (final["status"], final["error"]["message"]) == ("failed", "The moderator is away.")
    assert final["output"][0]["content"][0]["text"] == "All is well. "
    assert final["moderation"]["output"]["code"] == "not_moderated"
    assert office.inference.closed == 1
