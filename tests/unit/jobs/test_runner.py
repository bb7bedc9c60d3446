"""A background response is one stream and one response, even if its workers die, and no model round is repeated."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import pytest

from llama_stack_responses.admission import Quota
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.generation.loop import GenerationLimits
from llama_stack_responses.inputs.prompts import PromptVersion
from llama_stack_responses.jobs import runner
from llama_stack_responses.jobs.held_inputs import HeldInputs
from llama_stack_responses.jobs.job import QUEUED_EVENTS
from llama_stack_responses.jobs.queue import MAX_TRIES
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.store import codec
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import Condition, Op, Record, writes_of
from tests.support.inference import Round, call, finish, reasoning, text
from tests.support.leases import requeue_stalled
from tests.support.records import WatchedRecords
from tests.support.waiting import turns, until
from tests.unit.jobs.harness import ANNA, ID, KEEP, PATIENCE, ROUNDS, SAID, ProcessHarness, texts_of

type Json = dict[str, Any]


async def queued(records: WatchedRecords, *rounds: Round, **fields: Any) -> ProcessHarness:
    """Return a process with a queued response."""
    harness = ProcessHarness(records, *rounds)
    await harness.submit(harness.background_jobs(), **fields)
    return harness


# Completed


async def test_background_response_completes(records: WatchedRecords) -> None:
    harness = await queued(records, *ROUNDS)
    await harness.run_job()
    final = await harness.result()
    assert (final["status"], texts_of(final)) == ("completed", SAID)
    assert final["completed_at"] >= final["created_at"]
    assert final["usage"]["output_tokens"] == 18
    assert harness.access.acted == [(ANNA, {})]


async def test_job_is_begun_once_there_is_room_for_its_response_and_input(records: WatchedRecords) -> None:
    waits, go_on = asyncio.Event(), asyncio.Event()

    class Full(HeldInputs):
        async def read(self, *args: Any) -> Any:
            waits.set()
            await go_on.wait()
            return await super().read(*args)

    harness = await queued(records, *ROUNDS)
    job = harness.runner(await harness.claim())
    job._held_inputs = Full(Quota("inputs", 2**20, 2**20))
    running = asyncio.create_task(job.run())
    await asyncio.wait_for(waits.wait(), PATIENCE)
    types = [event["type"] for event in await harness.event_log.read_all(ID, -1)]
    assert (types, job._event_buffer.ready()) == (["response.created", "response.queued"], [])
    go_on.set()
    await asyncio.wait_for(running, PATIENCE)
    assert texts_of(await harness.result()) == SAID


@pytest.mark.parametrize("large", [False, True])
async def test_only_large_request_is_parsed_outside_event_loop(
    records: WatchedRecords, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    named = [{"type": "function", "name": f"f{number}"} for number in range(1_000 if large else 1)]
    harness = await queued(records, *ROUNDS, tools=named)
    job = harness.runner(await harness.claim())
    read, in_loop = job._parse, list[bool]()

    def parse(body: Json) -> Any:
        in_loop.append(threading.current_thread() is threading.main_thread())
        return read(body)

    monkeypatch.setattr(job, "_parse", parse)
    async with asyncio.timeout(PATIENCE):
        await job.run()
    assert in_loop == [not large]
    assert (await harness.result())["status"] == "completed"


async def test_job_uses_sealed_provider_keys_of_user(records: WatchedRecords) -> None:
    harness = ProcessHarness(records, *ROUNDS)
    await harness.submit(harness.background_jobs(), keys={"api_key": "sk-canary"})
    for row, record in await records.range("!", "~", limit=100):
        assert "canary" not in row
        # A worker's heartbeat and similar rows have no value.
        assert "canary" not in str(codec.decode(record.value) if row[0] in "jkr" else record.value)
    await harness.run_job()
    assert texts_of(await harness.result()) == SAID
    assert harness.access.acted == [(ANNA, {"api_key": "sk-canary"})]


async def test_job_keeps_prompt_text_from_time_of_request(records: WatchedRecords) -> None:
    class Prompts:
        async def get(self, prompt_id: str, version: int | None) -> PromptVersion:
            return PromptVersion("Speak {{language}}.", 3, frozenset({"language"}))

    harness = ProcessHarness(records, *ROUNDS)
    prompt = {"id": "p", "variables": {"language": "Greek"}}
    await harness.submit(harness.background_jobs(), prompts=Prompts(), prompt=prompt, instructions="Be kind.")
    # The worker has no access to prompts.
    await harness.run_job()
    final = await harness.result()
    expected = [{"role": "system", "content": "Speak Greek.\n\nBe kind."}, {"role": "user", "content": "hi"}]
    assert [request["messages"][:2] for request in harness.inference.requests] == [expected] * len(ROUNDS)
    assert final["prompt"] == {"id": "p", "variables": {"language": "Greek"}, "version": "3"}
    assert [item["content"][0]["text"] for item in final["instructions"]] == ["Speak Greek.", "Be kind."]


async def test_job_fails_if_sealed_keys_cannot_be_opened(records: WatchedRecords) -> None:
    harness = ProcessHarness(records, *ROUNDS)
    await harness.submit(harness.background_jobs(), keys={"api_key": "sk-canary"})
    harness.sealer = Sealer([bytes(32)])
    await harness.run_job()
    final = await harness.result()
    assert (final["status"], texts_of(final), harness.inference.requests) == ("failed", [], [])
    assert "a secret that this server does not have" in final["error"]["message"]


async def test_keys_are_refused_without_configured_secret(records: WatchedRecords) -> None:
    harness = ProcessHarness(records)
    harness.sealer = Sealer([])
    with pytest.raises(ApiError, match="'secrets'"):
        await harness.submit(harness.background_jobs(), keys={"api_key": "sk-canary"})
    assert await records.range("!", "~", limit=100) == []


async def test_response_is_stored_before_readers_get_terminal_event(records: WatchedRecords) -> None:
    harness = await queued(records, *ROUNDS)
    working = asyncio.create_task(harness.run_job())
    events = await harness.read()
    assert events[-1]["type"] == "response.completed"
    stored = await harness.archive.load(ID)
    assert stored is not None
    assert stored.response == events[-1]["response"]
    await working
    assert await harness.result() == stored.response


async def test_finished_job_does_not_read_its_event_log_again(records: WatchedRecords) -> None:
    read: set[str] = set()

    class NotedRecords(WatchedRecords):
        async def range(
            self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
        ) -> list[tuple[str, Record]]:
            found = await super().range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)
            read.update(key for key, _ in found if key.startswith(f"e/{ID}/"))
            return found

    harness = ProcessHarness(NotedRecords(records), *ROUNDS)
    await harness.submit(harness.background_jobs())
    await harness.run_job()
    # The events of the queued response were stored before the job began.
    assert read == {f"e/{ID}/{QUEUED_EVENTS - 1:08d}"}
    assert texts_of((await harness.result()), "completed") == SAID


async def test_event_log_of_finished_job_expires(records: WatchedRecords) -> None:
    harness = await queued(records, *ROUNDS)
    began = await records.now()
    await harness.run_job()
    ended = await records.now()
    due = [key.split("/") for key, _ in await records.range("t/", "t0", limit=10)]
    [(_, second, of)] = due
    assert of == ID
    assert int(began) <= int(second, 16) - KEEP <= ended + 1


async def test_job_cut_by_length_ends_incomplete(records: WatchedRecords) -> None:
    harness = await queued(records, [text("a"), finish("length")])
    await harness.run_job()
    final = await harness.result()
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


# Errors


@pytest.mark.parametrize(
    ("rounds", "texts", "message"),
    [
        ([ApiError(429, "Slow down.")], [], "Slow down."),
        ([ApiError(503, "Not now.")], [], "Not now."),
        ([[text("Hel"), ConnectionError("gone")]], ["Hel"], "explained: gone"),
        ([ROUNDS[0], [text("Hel"), ConnectionError("gone")]], [SAID[0], "Hel"], "explained: gone"),
        ([ROUNDS[0], ROUNDS[1], ApiError(502, "Gone.")], SAID[:2], "Gone."),
    ],
)
async def test_provider_error_fails_job(
    records: WatchedRecords, rounds: list[Round], texts: list[str], message: str
) -> None:
    harness = await queued(records, *rounds)
    await harness.run_job()
    final = await harness.result()
    assert (final["status"], final["error"]["message"], texts_of(final)) == ("failed", message, texts)
    assert [each.error and each.error.response_error() for each in harness.ended] == [final["error"]]


async def test_internal_error_fails_job(
    records: WatchedRecords, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness = await queued(records, *ROUNDS)

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("llama_stack_responses.generation.loop.Generation._add_output", broken)
    await harness.run_job()
    final = await harness.result()
    assert final["error"]["message"] == "The server failed while it generated the response (ZeroDivisionError)."
    assert [each.error and each.error.status for each in harness.ended] == [500]
    assert "ZeroDivisionError" in caplog.text


async def test_job_with_request_no_longer_valid_fails(records: WatchedRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = await queued(records, *ROUNDS, metadata={"a": "b"})
    first = harness.runner

    def strict(job: Any) -> runner.JobRunner:
        created = first(job)
        read = created._parse

        def parse(body: Json) -> Any:
            if "metadata" in body:
                raise ApiError(400, "No metadata here.")
            return read(body)

        monkeypatch.setattr(created, "_parse", parse)
        return created

    monkeypatch.setattr(harness, "runner", strict)
    for _ in range(MAX_TRIES):
        await harness.run_job()
        assert await requeue_stalled(harness.jobs) == 1
    await harness.run_job()
    final = await harness.result()
    assert (final["status"], final["metadata"]) == ("failed", {"a": "b"})
    assert harness.inference.requests == []


# Lost workers


HOW = ["killed", "stopped", "handed over"]
"""killed: stops at once; stopped: continues after its lease expired; handed over: releases the job itself."""


async def lose(harness: ProcessHarness, how: str, steps: int) -> asyncio.Task[None] | None:
    """Lose a worker after `steps` iterations of the event loop. Return the task of a worker that continues."""
    job = await harness.claim("dies")
    first = harness.runner(job)
    task = asyncio.create_task(first.run())
    await turns(steps)
    if how == "stopped":
        await requeue_stalled(harness.jobs)
        return task
    if how == "killed":
        task.cancel()
        await asyncio.wait([task])
        await requeue_stalled(harness.jobs)
        return None
    first.hand_over()
    async with asyncio.timeout(PATIENCE):
        await task
    return None


async def test_job_that_progresses_survives_any_number_of_lost_workers(records: WatchedRecords) -> None:
    await queued(records)
    for done in range(2 * MAX_TRIES):
        harness = ProcessHarness(records, ROUNDS[0], [text("cut"), asyncio.Event()])
        job = await harness.claim("dies")
        assert job.state.verdict is None
        task = asyncio.create_task(harness.runner(job).run())
        async with asyncio.timeout(PATIENCE):
            while (checkpoint := await harness.jobs.checkpoint(ID)) is None or checkpoint.rounds == done:
                await turns(1)
        task.cancel()
        await asyncio.wait([task])
        await requeue_stalled(harness.jobs)
    last = ProcessHarness(records, ROUNDS[-1])
    await last.run_job()
    final = await last.result(taken_over=True)
    assert (final["status"], texts_of(final)) == ("completed", [SAID[0]] * 2 * MAX_TRIES + [SAID[-1]])


@pytest.mark.extended
@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("steps", range(60))
async def test_worker_lost_at_any_step_completes_job_without_repeating_rounds(
    records: WatchedRecords, steps: int, how: str, read: bool
) -> None:
    first = await queued(records, *ROUNDS)
    reader = asyncio.create_task(first.read()) if read else None
    rest = await lose(first, how, steps)
    checkpoint = await first.jobs.checkpoint(ID)
    done = checkpoint.rounds if checkpoint else 0
    second = ProcessHarness(records, *ROUNDS[done:])
    if checkpoint:
        job = await second.claim("lives")
        assert job.state.tries == (1 if how == "handed over" else 2)
        async with asyncio.timeout(PATIENCE):
            await second.runner(job).run()
        assert len(second.inference.requests) == len(ROUNDS) - done, "a finished round was repeated"
    if rest:
        async with asyncio.timeout(PATIENCE):
            await rest
    final = await second.result(taken_over=True)
    assert final["status"] == "completed"
    # A reader has seen items of the unfinished round; the response has only those of the repeated one.
    assert texts_of(final) == SAID
    assert final["usage"]["output_tokens"] == 18
    if reader:
        async with asyncio.timeout(PATIENCE):
            assert await reader == await second.event_log.read_all(ID, -1)
    assert first.inference.streaming == second.inference.streaming == 0


@pytest.mark.parametrize("steps", range(1, 60, 3))
async def test_repeatedly_lost_workers_leave_one_consistent_stream(records: WatchedRecords, steps: int) -> None:
    harness = await queued(records, *ROUNDS)
    reader = asyncio.create_task(harness.read())
    for _ in range(MAX_TRIES):
        if checkpoint := await harness.jobs.checkpoint(ID):
            await lose(ProcessHarness(records, *ROUNDS[checkpoint.rounds :]), "killed", steps)
    checkpoint = await harness.jobs.checkpoint(ID)
    if checkpoint:
        last = ProcessHarness(records, *ROUNDS[checkpoint.rounds :])
        await last.run_job()
    final = await harness.result(taken_over=True)
    if checkpoint and checkpoint.tries == 0:
        assert last.inference.requests == []
        assert final["status"] == "failed"
        assert final["error"]["message"].startswith("The server ended several times")
    else:
        assert (final["status"], texts_of(final)) == ("completed", SAID)
    assert await reader == await harness.event_log.read_all(ID, -1)


@pytest.mark.parametrize("steps", range(0, 60, 2))
async def test_job_cancelled_at_any_step_ends_cancelled_or_completed(records: WatchedRecords, steps: int) -> None:
    harness = await queued(records, *ROUNDS)
    reader = asyncio.create_task(harness.read())
    first = harness.runner(await harness.claim())
    task = asyncio.create_task(first.run())
    await turns(steps)
    job = await harness.jobs.claim_to_end(ID, "w2", "cancelled")
    if job:
        await ProcessHarness(records).runner(job).run()
    async with asyncio.timeout(PATIENCE):
        await task
    final = await harness.result()
    assert final["status"] == ("cancelled" if job else "completed")
    assert texts_of(final, "completed") == SAID[: len(texts_of(final, "completed"))]
    assert await reader == await harness.event_log.read_all(ID, -1)


async def test_runner_that_lost_lease_closes_provider_stream(records: WatchedRecords) -> None:
    harness = await queued(records, [text("a"), asyncio.Event()])
    first = harness.runner(await harness.claim())
    task = asyncio.create_task(first.run())
    await turns(40)
    assert harness.inference.streaming == 1
    first.on_job_lost()
    await task
    assert harness.inference.streaming == 0
    job = await harness.jobs.find(ID)
    assert job == first.job


@pytest.mark.parametrize("how", ["on_job_lost", "hand_over"])
async def test_runner_ended_before_start_sends_no_request(records: WatchedRecords, how: str) -> None:
    harness = await queued(records, [text("a"), asyncio.Event()])
    first = harness.runner(await harness.claim())
    task = asyncio.create_task(first.run())
    getattr(first, how)()
    async with asyncio.timeout(PATIENCE):
        await task
    assert harness.inference.requests == []
    job = await harness.jobs.find(ID)
    assert job is not None
    assert job.state.worker == ("w1" if how == "on_job_lost" else None)


async def test_provider_error_after_hand_over_does_not_fail_job(records: WatchedRecords) -> None:
    class Unbound(asyncio.Event):
        """A pause of the provider's answer that a cancellation ends with an error of the connection."""

        async def wait(self) -> Literal[True]:
            try:
                return await super().wait()
            except asyncio.CancelledError:
                raise ConnectionResetError from None

    harness = await queued(records, [text("a"), Unbound()])
    first = harness.runner(await harness.claim())
    task = asyncio.create_task(first.run())
    await until(lambda: harness.inference.sent == 1)
    await turns(10)
    first.hand_over()
    async with asyncio.timeout(PATIENCE):
        await task
    job = await harness.jobs.find(ID)
    assert job is not None
    assert job.state.worker is None


async def test_concluding_job_is_finished_not_handed_over(records: WatchedRecords) -> None:
    harness = await queued(records, *ROUNDS)
    first = harness.runner(await harness.claim())
    task = asyncio.create_task(first.run())
    while not first._concluding:
        await turns(1)
    first.hand_over()
    await task
    assert texts_of(await harness.result()) == SAID


# Continuation by the next worker


async def test_next_worker_sends_earlier_rounds_to_model(records: WatchedRecords) -> None:
    first = await queued(records, *ROUNDS[:2], [asyncio.Event()])
    await lose(first, "killed", 150)
    assert len(first.inference.requests) == 3
    second = ProcessHarness(records, ROUNDS[2])
    await second.run_job()
    await second.result(taken_over=True)
    assert second.inference.requests == first.inference.requests[2:]
    ids = [call["id"] for message in second.inference.requests[0]["messages"] for call in message.get("tool_calls", ())]
    assert len(ids) == len(set(ids)) == 2


async def test_call_ids_stay_unique_across_workers(records: WatchedRecords) -> None:
    first = await queued(records, ROUNDS[0], [asyncio.Event()])
    await lose(first, "killed", 100)
    second = ProcessHarness(records, *ROUNDS[1:])
    await second.run_job()
    messages = second.inference.requests[-1]["messages"]
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert len(ids) == len(set(ids)) == 2


async def test_token_limit_holds_across_workers(records: WatchedRecords) -> None:
    first = await queued(records, ROUNDS[0], [asyncio.Event()], max_output_tokens=20)
    await lose(first, "killed", 100)
    second = ProcessHarness(records, [text("a"), finish(tokens=7)])
    await second.run_job()
    assert second.inference.requests[0]["max_completion_tokens"] == 15


async def test_round_limit_holds_across_workers(records: WatchedRecords) -> None:
    first = await queued(records, ROUNDS[0], [asyncio.Event()])
    await lose(first, "killed", 100)
    second = ProcessHarness(records, ROUNDS[1], limits=GenerationLimits(rounds=2, idle_seconds=30.0, tool_seconds=30.0))
    await second.run_job()
    final = await second.result(taken_over=True)
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "max_messages"})


async def test_cancelled_job_keeps_output_and_usage(records: WatchedRecords) -> None:
    first = await queued(records, ROUNDS[0], [text("And"), asyncio.Event()])
    reader = asyncio.create_task(first.read())
    await lose(first, "killed", 100)
    job = await first.jobs.claim_to_end(ID, "w2", "cancelled")
    assert job is not None
    await first.runner(job).run()
    final = await first.result(taken_over=True)
    assert (final["status"], texts_of(final)) == ("cancelled", [SAID[0], "And"])
    assert final["output"][-1]["status"] == "incomplete"
    assert final["usage"]["output_tokens"] == 5
    assert (await reader)[-1]["type"] == "response.incomplete"


async def test_call_cut_by_lost_worker_is_repeated_with_new_call_id(records: WatchedRecords) -> None:
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    first = await queued(records, [call("f", "c1", '{"a"'), asyncio.Event()], tools=tools)
    reader = asyncio.create_task(first.read())
    await lose(first, "killed", 100)
    second = ProcessHarness(records, [call("f", "c1", '{"a": 1}'), finish("tool_calls")])
    await second.run_job()
    final = await second.result(taken_over=True)
    assert [(item["status"], item["arguments"]) for item in final["output"]] == [("completed", '{"a": 1}')]
    calls = [event["item"] for event in await reader if event["type"] == "response.output_item.done"]
    assert [item["status"] for item in calls] == ["incomplete", "completed"]
    assert len({item["call_id"] for item in calls}) == 2


async def lose_after(harness: ProcessHarness, seen: list[Json], piece: str) -> None:
    """Kill a worker once a reader has seen this delta."""
    task = asyncio.create_task(harness.runner(await harness.claim("dies")).run())
    await until(lambda: any(event.get("delta") == piece for event in seen))
    task.cancel()
    await asyncio.wait([task])
    await requeue_stalled(harness.jobs)


async def test_text_cut_twice_is_in_the_response_once_and_in_its_stream_three_times(records: WatchedRecords) -> None:
    first, seen = await queued(records, ROUNDS[0], [reasoning("hm"), text("An"), asyncio.Event()]), list[Json]()
    reader = asyncio.create_task(first.read(seen=seen))
    await lose_after(first, seen, "An")
    second = ProcessHarness(records, [reasoning("so"), text("And ag"), asyncio.Event()])
    await lose_after(second, seen, "And ag")
    last = ProcessHarness(records, *ROUNDS[1:])
    await last.run_job()
    final = await last.result(taken_over=True)
    assert texts_of(final) == SAID
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "message", "message"]
    done = [event["item"] for event in await reader if event["type"] == "response.output_item.done"]
    assert texts_of({"output": done}, "incomplete") == ["An", "And ag"]
    stored = await last.archive.load(ID)
    assert stored
    history = await last.archive.history(stored.history)
    assert texts_of({"output": history[1:]}) == SAID


async def test_texts_cut_in_two_rounds_are_left_out(records: WatchedRecords) -> None:
    first, seen = await queued(records, [text("Le"), asyncio.Event()]), list[Json]()
    reader = asyncio.create_task(first.read(seen=seen))
    await lose_after(first, seen, "Le")
    await lose_after(ProcessHarness(records, ROUNDS[0], [text("An"), asyncio.Event()]), seen, "An")
    last = ProcessHarness(records, *ROUNDS[1:])
    await last.run_job()
    assert texts_of(await last.result(taken_over=True)) == SAID
    assert texts_of({"output": [event["item"] for event in await reader if "item" in event]}, "incomplete") == [
        "Le",
        "An",
    ]


async def test_failed_job_keeps_only_what_its_last_try_wrote(records: WatchedRecords) -> None:
    harness, seen = await queued(records, [text("one"), asyncio.Event()]), list[Json]()
    reader = asyncio.create_task(harness.read(seen=seen))
    await lose_after(harness, seen, "one")
    for written in ("two", "three"):
        await lose_after(ProcessHarness(records, [reasoning("hm"), text(written), asyncio.Event()]), seen, written)
    await harness.run_job()
    final = await harness.result(taken_over=True)
    assert (final["status"], texts_of(final)) == ("failed", ["three"])
    assert [item["type"] for item in final["output"]] == ["reasoning", "message"]
    await reader


async def test_round_with_whole_client_call_that_was_read_is_not_repeated(records: WatchedRecords) -> None:
    tools: list[Json] = [{"type": "function", "name": name, "parameters": {}} for name in ("f", "g")]
    created: Round = [call("f", "c1", '{"a": 1}'), call("g", "c2", '{"b"', index=1), asyncio.Event()]
    first = await queued(records, created, tools=tools)
    reader = asyncio.create_task(first.read())
    await lose(first, "killed", 100)
    second = ProcessHarness(records)
    await second.run_job()
    final = await second.result(taken_over=True)
    assert second.inference.requests == []
    assert [(item["name"], item["status"]) for item in final["output"]] == [("f", "completed"), ("g", "incomplete")]
    assert final["status"] == "completed"
    assert (await reader)[-1]["type"] == "response.completed"


async def test_undelivered_client_call_is_discarded_on_resume(records: WatchedRecords) -> None:
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    first = await queued(records, [call("f", "c1", "{}"), text("And"), asyncio.Event()], tools=tools)
    await lose(first, "killed", 100)
    second = ProcessHarness(records, [text("Hello"), finish()])
    await second.run_job()
    assert texts_of(await second.result(taken_over=True)) == ["Hello"]


async def test_job_of_deleted_response_is_removed(records: WatchedRecords) -> None:
    harness = await queued(records, *ROUNDS)
    job = await harness.claim()
    await harness.archive.delete(ID)
    await harness.runner(job).run()
    assert harness.inference.requests == []
    assert await harness.jobs.find(ID) is None
    assert [key for key, _ in await records.range("t/", "t0", limit=10)]


async def test_job_of_a_response_that_has_expired_is_finished(records: WatchedRecords) -> None:
    harness = await queued(records, *ROUNDS)
    job = await harness.claim()
    right, wrong = harness.archive, Archive(records, clock=lambda: time.time() + 31 * 86_400)
    assert await wrong.load(ID) is None
    harness.archive = wrong
    await harness.runner(job).run()
    harness.archive = right
    assert texts_of(await harness.result(), "completed") == SAID


# Store outages


@pytest.mark.parametrize("steps", range(0, 60, 2))
async def test_job_waits_out_store_outage(records: WatchedRecords, steps: int) -> None:
    harness = await queued(records, *ROUNDS)
    job = await harness.claim()
    task = asyncio.create_task(harness.runner(job).run())
    await turns(steps)
    records.away = True
    await turns(60)
    records.away = False
    async with asyncio.timeout(PATIENCE):
        await task
    final = await harness.result()
    assert (final["status"], texts_of(final)) == ("completed", SAID)
    assert len(harness.inference.requests) == len(ROUNDS)


@pytest.mark.parametrize("steps", range(0, 60, 2))
async def test_store_outage_does_not_block_hand_over(records: WatchedRecords, steps: int) -> None:
    harness = await queued(records, *ROUNDS)
    first = harness.runner(await harness.claim())
    task = asyncio.create_task(first.run())
    await turns(steps)
    records.away = True
    await turns(steps % 7)
    first.hand_over()
    async with asyncio.timeout(PATIENCE):
        await task
    assert harness.inference.streaming == 0


class UncertainRecords(WatchedRecords):
    """Records whose first commit of a key with `prefix` fails with an error, applied or not.

    Args:
        prefix: how the key begins.
        committed: whether the commit is applied.
        meanwhile: called before the error is raised.
    """

    def __init__(
        self, records: WatchedRecords, prefix: str, *, committed: bool, meanwhile: Callable[[], Awaitable[object]]
    ) -> None:
        super().__init__(records)
        self._prefix: str | None = prefix
        self._committed = committed
        self._meanwhile = meanwhile

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        prefix = self._prefix
        if prefix is None or not any(op.key.startswith(prefix) for op in writes_of(ops)):
            await super().commit(ops, conditions)
            return
        self._prefix = None
        if self._committed:
            await super().commit(ops, conditions)
        await self._meanwhile()
        raise ApiError(503, "The connection was lost.")


@pytest.mark.parametrize("committed", [True, False])
async def test_server_ending_during_final_commit_leaves_finished_or_queued_job(
    records: WatchedRecords, committed: bool
) -> None:
    first = await queued(records, *ROUNDS)
    reader = asyncio.create_task(first.read())
    await turns(3)
    working: list[runner.JobRunner] = []

    async def end() -> None:
        working[0].hand_over()

    unsure = ProcessHarness(UncertainRecords(records, "t/", committed=committed, meanwhile=end), *ROUNDS)
    working.append(unsure.runner(await unsure.claim()))
    async with asyncio.timeout(PATIENCE):
        await working[0].run()
    assert (await first.jobs.find(ID) is None) == committed
    if not committed:
        await ProcessHarness(records, ROUNDS[2]).run_job()
    final = await first.result(taken_over=True)
    assert (final["status"], texts_of(final, "completed")) == ("completed", SAID)
    assert await reader == await first.event_log.read_all(ID, -1)


async def test_reader_during_unconfirmed_removal_of_cut_events_sees_final_stream(
    records: WatchedRecords,
) -> None:
    first = await queued(records, [text("Hel"), text("lo"), asyncio.Event()])
    await lose(first, "killed", 60)
    cut = await first.event_log.read_all(ID, -1)
    assert cut[-1]["type"] == "response.output_text.delta"
    readers: list[asyncio.Task[list[Json]]] = []

    async def come() -> None:
        readers.append(asyncio.create_task(first.read()))
        await turns(5)

    key = f"e/{ID}/{cut[-1]['sequence_number']:08d}"
    second = ProcessHarness(UncertainRecords(records, key, committed=True, meanwhile=come), [text("Hello"), finish()])
    await second.run_job()
    final = await second.result(taken_over=True)
    assert texts_of(final) == ["Hello"]
    assert await readers[0] == await second.event_log.read_all(ID, -1)


# Compacted conversations


SUMMARY: list[Any] = [text("They "), text("spoke."), finish(tokens=7)]
ANSWER: list[Any] = [text("Hello"), finish(tokens=5)]
TURNS: Sequence[Json] = [{"role": role, "content": "word " * 90} for role in ("user", "assistant")]


@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("steps", range(0, 45, 3))
async def test_conversation_is_compacted_once_despite_lost_worker(
    records: WatchedRecords, steps: int, read: bool
) -> None:
    at_100 = [{"type": "compaction", "compact_threshold": 100}]
    questions = [*TURNS, {"role": "user", "content": "hi"}]
    first = await queued(records, SUMMARY, ANSWER, input=questions, context_management=at_100)
    reader = asyncio.create_task(first.read()) if read else None
    await lose(first, "killed", steps)
    checkpoint = await first.jobs.checkpoint(ID)
    second = ProcessHarness(records, *([ANSWER] if checkpoint and checkpoint.said else [SUMMARY, ANSWER]))
    if checkpoint:
        await second.run_job("lives")
    final = await second.result(taken_over=True)
    assert final["status"] == "completed"
    assert final["usage"]["output_tokens"] == 12
    whole = [item for item in final["output"] if item.get("encrypted_content")]
    assert [item["type"] for item in whole] == ["compaction"]
    assert read or len(final["output"]) == 2
    if reader:
        async with asyncio.timeout(PATIENCE):
            assert await reader == await second.event_log.read_all(ID, -1)
    if second.inference.requests:
        assert "They spoke." in second.inference.requests[-1]["messages"][0]["content"]
