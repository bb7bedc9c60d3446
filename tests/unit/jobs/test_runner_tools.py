"""A background response with hosted tools: a lost worker never causes a finished step to be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import pytest

from llama_stack_responses.items.tool_usage import ImageUsage
from llama_stack_responses.store.records import Records
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.tool_function import Outcome
from tests.support.inference import Round, call, chunk, finish, text
from tests.support.leases import requeue_stalled
from tests.support.records import WatchedRecords
from tests.support.strict import check_stream
from tests.support.tools import FakeTools
from tests.support.waiting import turns
from tests.unit.jobs.harness import ID, PATIENCE, ProcessHarness

Json = dict[str, Any]


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


class JobHarness:
    """One process with a hosted tool."""

    def __init__(self, records: Records, *rounds: Round, repeatable: bool) -> None:
        pause = asyncio.Event()
        asyncio.get_running_loop().call_soon(pause.set)
        self.tools = FakeTools(*[step for _ in range(3) for step in (pause, Outcome("found"))], repeatable=repeatable)
        makers = {**client_tools(), "web_search": self.tools.make}
        self.harness = ProcessHarness(records, *rounds, makers=makers)

    async def submit(self, response_id: str = ID, **fields: Any) -> None:
        """Queue a response."""
        tools = [{"type": "web_search"}]
        await self.harness.submit(self.harness.background_jobs(), response_id, tools=tools, **fields)


@pytest.mark.extended
@pytest.mark.parametrize("repeatable", [True, False], ids=["repeatable", "once"])
@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("steps", range(0, 110, 3))
async def test_worker_killed_at_any_step_completes_tool_calls_without_repeating_rounds(
    records: WatchedRecords, steps: int, read: bool, repeatable: bool
) -> None:
    first = JobHarness(records, *ROUNDS, repeatable=repeatable)
    await first.submit()
    reader = asyncio.create_task(first.harness.read()) if read else None
    await kill(first.harness, steps)
    checkpoint = await first.harness.jobs.checkpoint(ID)
    done = checkpoint.rounds if checkpoint else 0
    second = JobHarness(records, *ROUNDS[done:], repeatable=repeatable)
    if checkpoint:
        await second.harness.run_job("lives")
        assert len(second.harness.inference.requests) == len(ROUNDS) - done, "a finished round was repeated"
    final = await second.harness.result(taken_over=True)
    assert final["status"] == "completed"
    assert final["usage"]["output_tokens"] == 18
    if reader:
        async with asyncio.timeout(PATIENCE):
            assert await reader == await second.harness.event_log.read_all(ID, -1)
    answered = {each["query"] for each in first.tools.ran} & {each["query"] for each in second.tools.ran}
    assert repeatable or not answered, "a call that may have run was run again"
    searches = [item for item in final["output"] if item["type"] == "web_search_call"]
    assert [each["status"] for each in searches].count("completed") == 3 or not repeatable
    assert {each["action"]["query"] for each in searches} == {"a", "b", "c"}
    if not read and repeatable:
        assert len(searches) == 3


async def kill(harness: ProcessHarness, steps: int) -> None:
    """Claim the job and die after `steps` iterations of the event loop."""
    task = asyncio.create_task(harness.runner(await harness.claim("dies")).run())
    await turns(steps)
    task.cancel()
    await asyncio.wait([task])
    await requeue_stalled(harness.jobs)


async def test_next_worker_sends_each_tool_output_to_model_once(records: WatchedRecords) -> None:
    first = JobHarness(records, *ROUNDS[:2], [asyncio.Event()], repeatable=False)
    await first.submit()
    await kill(first.harness, 200)
    assert len(first.harness.inference.requests) == 3
    second = JobHarness(records, ROUNDS[2], repeatable=False)
    await second.harness.run_job()
    await second.harness.result(taken_over=True)
    assert second.harness.inference.requests == first.harness.inference.requests[2:]
    assert second.tools.ran == []


async def test_next_worker_reports_tokens_of_images_and_searches_of_all_workers(records: WatchedRecords) -> None:
    first = JobHarness(records, *ROUNDS[:2], [asyncio.Event()], repeatable=False)
    first.tools.answers[:] = [Outcome("found", image_usage=ImageUsage(9, 4, 500, 500))] * 3
    await first.submit()
    await kill(first.harness, 200)
    second = JobHarness(records, ROUNDS[2], repeatable=False)
    await second.harness.run_job()
    usage = (await second.harness.result(taken_over=True))["tool_usage"]
    assert usage["image_gen"]["input_tokens_details"] == {"image_tokens": 12, "text_tokens": 15}
    assert usage["image_gen"]["output_tokens"] == 1500
    assert usage["web_search"] == {"num_requests": 3}


async def test_next_worker_compares_the_prompt_that_the_first_worker_sent(records: WatchedRecords) -> None:
    earlier = JobHarness(records, ROUNDS[2], repeatable=False)
    await earlier.submit("resp_0")
    await earlier.harness.run_job()
    first = JobHarness(records, *ROUNDS[:2], [asyncio.Event()], repeatable=False)
    await first.submit(prompt_cache_options={"comparison_response_id": "resp_0"}, prompt_cache_key="another")
    await kill(first.harness, 200)
    longer = chunk({}, finish_reason="stop", usage={"prompt_tokens": 500, "completion_tokens": 7})
    second = JobHarness(records, [text("42"), longer], repeatable=False)
    await second.harness.run_job()
    assert (await second.harness.result(taken_over=True))["prompt_cache_diagnostics"] == {
        "type": "cache_miss",
        "reason": "prompt_cache_key_changed",
        "cache_missed_tokens": 1,
        "comparison_reusable_tokens": 1,
    }


async def test_next_worker_sends_events_held_behind_first_call(records: WatchedRecords) -> None:
    first = JobHarness(records, ROUNDS[0], repeatable=True)
    first.tools.answers[:] = [asyncio.Event(), Outcome("found")]
    await first.submit()
    reader = asyncio.create_task(first.harness.read())
    await kill(first.harness, 200)
    checkpoint = await first.harness.jobs.checkpoint(ID)
    assert checkpoint
    assert (len(checkpoint.waiting), {event["output_index"] for event in checkpoint.held_events}) == (1, {2})
    second = JobHarness(records, ROUNDS[2], repeatable=True)
    await second.harness.run_job()
    final = check_stream(await reader)
    assert [item["type"] for item in final["output"]] == ["message", "web_search_call", "web_search_call", "message"]
    assert [item["status"] for item in final["output"]] == ["completed"] * 4
    assert second.tools.ran == [{"query": "a"}]


async def test_next_worker_numbers_events_after_joined_deltas_without_gap(records: WatchedRecords) -> None:
    words = [text("word ") for _ in range(50)]
    first = JobHarness(records, [call("lookup", "1", '{"query": "a"}'), *words, finish("tool_calls")], repeatable=True)
    first.tools.answers[:] = [asyncio.Event()]
    await first.submit()
    reader = asyncio.create_task(first.harness.read())
    await kill(first.harness, 400)
    checkpoint = await first.harness.jobs.checkpoint(ID)
    assert checkpoint
    assert [event["delta"] for event in checkpoint.held_events if "delta" in event] == ["word " * 50]
    second = JobHarness(records, [text("42"), finish()], repeatable=True)
    await second.harness.run_job()
    await second.harness.result(taken_over=True)
    async with asyncio.timeout(PATIENCE):
        event_list = await reader
    check_stream(event_list)
    assert "word " * 50 in [event.get("delta") for event in event_list]


async def test_tool_outputs_are_stored_in_history_not_in_response(records: WatchedRecords) -> None:
    harness = JobHarness(records, *ROUNDS, repeatable=False)
    await harness.submit()
    await harness.harness.run_job()
    final = await harness.harness.result()
    assert not any("exchange" in item for item in final["output"])
    stored = await harness.harness.archive.load(ID)
    assert stored
    history = await harness.harness.archive.history(stored.history)
    exchanges = [item["exchange"] for item in history if "exchange" in item]
    assert [(each["name"], each["output"]) for each in exchanges] == [("lookup", "found")] * 3


async def test_cancelled_job_closes_tool_calls_that_ran(records: WatchedRecords) -> None:
    harness = JobHarness(records, *ROUNDS, repeatable=True)
    harness.tools.answers[:] = [Outcome("found"), asyncio.Event()]
    await harness.submit()
    await kill(harness.harness, 200)
    checkpoint = await harness.harness.jobs.checkpoint(ID)
    assert checkpoint
    assert len(checkpoint.waiting) == 1
    job = await harness.harness.jobs.claim_to_end(ID, "w2", "cancelled")
    assert job
    await JobHarness(records, repeatable=True).harness.runner(job).run()
    final = await harness.harness.result()
    assert final["status"] == "cancelled"
    searches = [item["status"] for item in final["output"] if item["type"] == "web_search_call"]
    assert searches == ["completed", "incomplete"]
