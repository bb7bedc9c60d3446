"""A background response whose tools the server runs: nothing that is finished is done again, whenever a worker is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import pytest

from llama_stack_responses.store.records import Records
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.tool import Outcome
from tests.support.inference import Round, call, finish, text
from tests.support.records import WatchedRecords
from tests.support.tools import FakeTools
from tests.unit.jobs.office import ID, PATIENCE, Office, turns

Json = dict[str, Any]

pytestmark = pytest.mark.usefixtures("hurried")


ROUNDS: Final[Sequence[Round]] = (
    [
        text("Let me look."),
        call("lookup", "1", '{"query": "a"}'),
        call("lookup", "2", '{"query": "b"}', index=1),
        finish("tool_calls", tokens=5),
    ],
    [text("And again."), call("lookup", "1", '{"query": "c"}'), finish("tool_calls", tokens=6)],
    [text("42"), finish(tokens=7)],
)


class Desk:
    """One process with a hosted tool."""

    def __init__(self, records: Records, *rounds: Round, repeatable: bool) -> None:
        pause = asyncio.Event()
        asyncio.get_running_loop().call_soon(pause.set)
        self.tools = FakeTools(*[step for _ in range(3) for step in (pause, Outcome("found"))], repeatable=repeatable)
        makers = {**client_tools(), "web_search": self.tools.make}
        self.office = Office(records, *rounds, makers=makers)

    async def submit(self) -> None:
        """Queues a response."""
        await self.office.submit(self.office.crew(), tools=[{"type": "web_search"}])


@pytest.mark.parametrize("repeatable", [True, False], ids=["repeatable", "once"])
@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("steps", range(0, 110, 3))
async def test_a_worker_is_killed_at_any_step(
    records: WatchedRecords, steps: int, read: bool, repeatable: bool
) -> None:
    first = Desk(records, *ROUNDS, repeatable=repeatable)
    await first.submit()
    reader = asyncio.create_task(first.office.read()) if read else None
    await kill(first.office, steps)
    work = await first.office.jobs.work(ID)
    done = work.rounds if work else 0
    second = Desk(records, *ROUNDS[done:], repeatable=repeatable)
    if work:
        await second.office.work("lives")
        assert len(second.office.inference.requests) == len(ROUNDS) - done, "a finished round was made again"
    final = await second.office.result()
    assert final["status"] == "completed"
    assert final["usage"]["output_tokens"] == 18
    if reader:
        async with asyncio.timeout(PATIENCE):
            assert await reader == await second.office.journal.read_all(ID, -1)
    answered = {each["query"] for each in first.tools.ran} & {each["query"] for each in second.tools.ran}
    assert repeatable or not answered, "a call that may have run was run again"
    searches = [item for item in final["output"] if item["type"] == "web_search_call"]
    assert [each["status"] for each in searches].count("completed") == 3 or not repeatable
    assert {each["action"]["query"] for each in searches} == {"a", "b", "c"}
    if not read and repeatable:
        assert len(searches) == 3


async def kill(office: Office, steps: int) -> None:
    """Takes the job and dies after so many turns of the loop."""
    task = asyncio.create_task(office.attempt(await office.claim("dies")).run())
    await turns(steps)
    task.cancel()
    await asyncio.wait([task])
    await office.jobs.rescue()


async def test_the_model_of_the_next_worker_hears_every_answer_once(records: WatchedRecords) -> None:
    first = Desk(records, *ROUNDS[:2], [asyncio.Event()], repeatable=False)
    await first.submit()
    await kill(first.office, 200)
    assert len(first.office.inference.requests) == 3
    second = Desk(records, ROUNDS[2], repeatable=False)
    await second.office.work()
    await second.office.result()
    assert second.office.inference.requests == first.office.inference.requests[2:]
    assert second.tools.ran == []


async def test_what_the_model_was_told_is_there_for_the_next_turn(records: WatchedRecords) -> None:
    desk = Desk(records, *ROUNDS, repeatable=False)
    await desk.submit()
    await desk.office.work()
    final = await desk.office.result()
    assert not any("exchange" in item for item in final["output"])
    stored = await desk.office.archive.load(ID)
    assert stored
    history = await desk.office.archive.history(stored.history)
    told = [item["exchange"] for item in history if "exchange" in item]
    assert [(each["name"], each["output"]) for each in told] == [("lookup", "found")] * 3


async def test_a_cancelled_response_closes_the_calls_that_ran(records: WatchedRecords) -> None:
    desk = Desk(records, *ROUNDS, repeatable=True)
    desk.tools.answers[:] = [Outcome("found"), asyncio.Event()]
    await desk.submit()
    await kill(desk.office, 200)
    work = await desk.office.jobs.work(ID)
    assert work
    assert len(work.waiting) == 1
    held = await desk.office.jobs.seize(ID, "w2", "cancelled")
    assert held
    await Desk(records, repeatable=True).office.attempt(held).run()
    final = await desk.office.result()
    assert final["status"] == "cancelled"
    searches = [item["status"] for item in final["output"] if item["type"] == "web_search_call"]
    assert searches == ["completed", "incomplete"]
