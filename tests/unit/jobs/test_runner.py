"""Whatever becomes of its workers, a background response is one stream and one response, and no round is made twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.generation.loop import TurnLimits
from llama_stack_responses.inputs.prompts import Template
from llama_stack_responses.jobs import runner as attempt
from llama_stack_responses.jobs.queue import TRIES
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.store import codec
from llama_stack_responses.store.records import Condition, Op, writes_of
from tests.support.inference import Round, call, finish, text
from tests.support.records import WatchedRecords
from tests.unit.jobs.office import ANNA, ID, KEEP, PATIENCE, ROUNDS, SAID, Office, said, turns

type Json = dict[str, Any]

pytestmark = pytest.mark.usefixtures("hurried")


async def queued(records: WatchedRecords, *rounds: Round, **fields: Any) -> Office:
    """A process, and a response that waits."""
    office = Office(records, *rounds)
    await office.submit(office.crew(), **fields)
    return office


# To the end


async def test_a_response_is_made(records: WatchedRecords) -> None:
    office = await queued(records, *ROUNDS)
    await office.work()
    final = await office.result()
    assert (final["status"], said(final)) == ("completed", SAID)
    assert final["completed_at"] >= final["created_at"]
    assert final["usage"]["output_tokens"] == 18
    assert office.access.acted == [(ANNA, {})]


async def test_it_is_made_with_the_users_own_keys(records: WatchedRecords) -> None:
    office = Office(records, *ROUNDS)
    await office.submit(office.crew(), keys={"api_key": "sk-canary"})
    for row, record in await records.range("!", "~", limit=100):
        assert "canary" not in row
        # A worker's sign of life and the like have no value.
        assert "canary" not in str(codec.decode(record.value) if row[0] in "jkr" else record.value)
    await office.work()
    assert said(await office.result()) == SAID
    assert office.access.acted == [(ANNA, {"api_key": "sk-canary"})]


async def test_it_hears_what_its_prompt_said_when_it_was_asked_for(records: WatchedRecords) -> None:
    class Prompts:
        async def get(self, prompt_id: str, version: int | None) -> Template:
            return Template("Speak {{language}}.", 3, frozenset({"language"}))

    office = Office(records, *ROUNDS)
    prompt = {"id": "p", "variables": {"language": "Greek"}}
    await office.submit(office.crew(), prompts=Prompts(), prompt=prompt, instructions="Be kind.")
    # Whoever makes it knows no prompts.
    await office.work()
    final = await office.result()
    heard = [{"role": "system", "content": "Speak Greek.\n\nBe kind."}, {"role": "user", "content": "hi"}]
    assert [request["messages"][:2] for request in office.inference.requests] == [heard] * len(ROUNDS)
    assert final["prompt"] == {"id": "p", "variables": {"language": "Greek"}, "version": "3"}
    assert [item["content"][0]["text"] for item in final["instructions"]] == ["Speak Greek.", "Be kind."]


async def test_keys_that_cannot_be_opened_fail_it(records: WatchedRecords) -> None:
    office = Office(records, *ROUNDS)
    await office.submit(office.crew(), keys={"api_key": "sk-canary"})
    office.sealer = Sealer([bytes(32)])
    await office.work()
    final = await office.result()
    assert (final["status"], said(final), office.inference.requests) == ("failed", [], [])
    assert "a secret that this server does not have" in final["error"]["message"]


async def test_without_a_secret_keys_are_refused(records: WatchedRecords) -> None:
    office = Office(records)
    office.sealer = Sealer([])
    with pytest.raises(ApiError, match="'secrets'"):
        await office.submit(office.crew(), keys={"api_key": "sk-canary"})
    assert await records.range("!", "~", limit=100) == []


async def test_it_is_stored_before_readers_hear_of_the_end(records: WatchedRecords) -> None:
    office = await queued(records, *ROUNDS)
    working = asyncio.create_task(office.work())
    events = await office.read()
    assert events[-1]["type"] == "response.completed"
    stored = await office.archive.load(ID)
    assert stored is not None
    assert stored.response == events[-1]["response"]
    await working
    assert await office.result() == stored.response


async def test_its_journal_is_dropped_after_a_while(records: WatchedRecords) -> None:
    office = await queued(records, *ROUNDS)
    await office.work()
    due = [key.split("/") for key, _ in await records.range("t/", "t0", limit=10)]
    [(_, second, of)] = due
    assert of == ID
    assert abs(int(second, 16) - (await records.now() + KEEP)) <= 2


async def test_a_turn_that_is_cut_off(records: WatchedRecords) -> None:
    office = await queued(records, [text("a"), finish("length")])
    await office.work()
    final = await office.result()
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
async def test_an_error_of_the_provider_ends_it_as_failed(
    records: WatchedRecords, rounds: list[Round], texts: list[str], message: str
) -> None:
    office = await queued(records, *rounds)
    await office.work()
    final = await office.result()
    assert (final["status"], final["error"]["message"], said(final)) == ("failed", message, texts)


async def test_a_bug_of_ours_ends_it_as_failed(
    records: WatchedRecords, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    office = await queued(records, *ROUNDS)

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("llama_stack_responses.generation.loop.Turn._hear", broken)
    await office.work()
    final = await office.result()
    assert final["error"]["message"] == "The server failed while it made the response (ZeroDivisionError)."
    assert "ZeroDivisionError" in caplog.text


async def test_a_request_that_cannot_be_read_any_longer_ends_as_failed(
    records: WatchedRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = await queued(records, *ROUNDS, metadata={"a": "b"})
    first = office.attempt

    def strict(held: Any) -> attempt.Attempt:
        made = first(held)
        read = made._parse

        def parse(body: Json) -> Any:
            if "metadata" in body:
                raise ApiError(400, "No metadata here.")
            return read(body)

        monkeypatch.setattr(made, "_parse", parse)
        return made

    monkeypatch.setattr(office, "attempt", strict)
    for _ in range(TRIES):
        await office.work()
        assert await office.jobs.rescue() == 1
    await office.work()
    final = await office.result()
    assert (final["status"], final["metadata"]) == ("failed", {"a": "b"})
    assert office.inference.requests == []


# Workers that are lost


HOW = ["killed", "stopped", "handed over"]
"""Nothing more comes from it; it goes on, long after it was taken for dead; it lets go by itself."""


async def lose(office: Office, how: str, steps: int) -> asyncio.Task[None] | None:
    """A worker that is lost after so many turns of the loop; the task is one that goes on."""
    held = await office.claim("dies")
    first = office.attempt(held)
    task = asyncio.create_task(first.run())
    await turns(steps)
    if how == "stopped":
        await office.jobs.rescue()
        return task
    if how == "killed":
        task.cancel()
        await asyncio.wait([task])
        await office.jobs.rescue()
        return None
    first.hand_over()
    async with asyncio.timeout(PATIENCE):
        await task
    return None


async def test_a_response_that_gets_on_outlives_any_number_of_workers(records: WatchedRecords) -> None:
    await queued(records)
    for done in range(2 * TRIES):
        office = Office(records, ROUNDS[0], [text("cut"), asyncio.Event()])
        held = await office.claim("dies")
        assert held.job.verdict is None
        task = asyncio.create_task(office.attempt(held).run())
        async with asyncio.timeout(PATIENCE):
            while (work := await office.jobs.work(ID)) is None or work.rounds == done:
                await turns(1)
        task.cancel()
        await asyncio.wait([task])
        await office.jobs.rescue()
    last = Office(records, ROUNDS[-1])
    await last.work()
    final = await last.result()
    assert (final["status"], said(final)) == ("completed", [SAID[0]] * 2 * TRIES + [SAID[-1]])


@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("steps", range(60))
async def test_a_worker_is_lost_at_any_step(records: WatchedRecords, steps: int, how: str, read: bool) -> None:
    first = await queued(records, *ROUNDS)
    reader = asyncio.create_task(first.read()) if read else None
    rest = await lose(first, how, steps)
    work = await first.jobs.work(ID)
    done = work.rounds if work else 0
    second = Office(records, *ROUNDS[done:])
    if work:
        held = await second.claim("lives")
        assert held.job.tries == (1 if how == "handed over" else 2)
        async with asyncio.timeout(PATIENCE):
            await second.attempt(held).run()
        assert len(second.inference.requests) == len(ROUNDS) - done, "a finished round was made again"
    if rest:
        async with asyncio.timeout(PATIENCE):
            await rest
    final = await second.result()
    assert final["status"] == "completed"
    # What was finished in a round that was not, and was read, stands; the round says it again.
    assert list(dict.fromkeys(said(final, "completed"))) == SAID
    assert final["usage"]["output_tokens"] == 18
    if reader:
        async with asyncio.timeout(PATIENCE):
            assert await reader == await second.journal.read_all(ID, -1)
    else:
        assert said(final) == SAID
    assert first.inference.streaming == second.inference.streaming == 0


@pytest.mark.parametrize("steps", range(1, 60, 3))
async def test_workers_are_lost_again_and_again(records: WatchedRecords, steps: int) -> None:
    office = await queued(records, *ROUNDS)
    reader = asyncio.create_task(office.read())
    for _ in range(TRIES):
        if work := await office.jobs.work(ID):
            await lose(Office(records, *ROUNDS[work.rounds :]), "killed", steps)
    work = await office.jobs.work(ID)
    if work:
        last = Office(records, *ROUNDS[work.rounds :])
        await last.work()
    final = await office.result()
    if work and work.tries == 0:
        assert last.inference.requests == []
        assert final["status"] == "failed"
        assert final["error"]["message"].startswith("The server ended several times")
    else:
        assert final["status"] == "completed"
    assert await reader == await office.journal.read_all(ID, -1)


@pytest.mark.parametrize("steps", range(0, 60, 2))
async def test_it_is_cancelled_at_any_step(records: WatchedRecords, steps: int) -> None:
    office = await queued(records, *ROUNDS)
    reader = asyncio.create_task(office.read())
    first = office.attempt(await office.claim())
    task = asyncio.create_task(first.run())
    await turns(steps)
    held = await office.jobs.seize(ID, "w2", "cancelled")
    if held:
        await Office(records).attempt(held).run()
    async with asyncio.timeout(PATIENCE):
        await task
    final = await office.result()
    assert final["status"] == ("cancelled" if held else "completed")
    assert said(final, "completed") == SAID[: len(said(final, "completed"))]
    assert await reader == await office.journal.read_all(ID, -1)


async def test_a_lost_attempt_lets_go_of_the_provider(records: WatchedRecords) -> None:
    office = await queued(records, [text("a"), asyncio.Event()])
    first = office.attempt(await office.claim())
    task = asyncio.create_task(first.run())
    await turns(40)
    assert office.inference.streaming == 1
    first.lose()
    await task
    assert office.inference.streaming == 0
    held = await office.jobs.find(ID)
    assert held == first.held


@pytest.mark.parametrize("how", ["lose", "hand_over"])
async def test_an_attempt_can_be_ended_before_it_began(records: WatchedRecords, how: str) -> None:
    office = await queued(records, [text("a"), asyncio.Event()])
    first = office.attempt(await office.claim())
    task = asyncio.create_task(first.run())
    getattr(first, how)()
    async with asyncio.timeout(PATIENCE):
        await task
    assert office.inference.requests == []
    held = await office.jobs.find(ID)
    assert held is not None
    assert held.job.worker == ("w1" if how == "lose" else None)


async def test_what_is_at_its_end_is_brought_there_and_not_handed_over(records: WatchedRecords) -> None:
    office = await queued(records, *ROUNDS)
    first = office.attempt(await office.claim())
    task = asyncio.create_task(first.run())
    while not first._concluding:
        await turns(1)
    first.hand_over()
    await task
    assert said(await office.result()) == SAID


# What goes on


async def test_the_next_worker_tells_the_model_what_was_said(records: WatchedRecords) -> None:
    first = await queued(records, *ROUNDS[:2], [asyncio.Event()])
    await lose(first, "killed", 150)
    assert len(first.inference.requests) == 3
    second = Office(records, ROUNDS[2])
    await second.work()
    await second.result()
    assert second.inference.requests == first.inference.requests[2:]
    ids = [call["id"] for message in second.inference.requests[0]["messages"] for call in message.get("tool_calls", ())]
    assert len(ids) == len(set(ids)) == 2


async def test_calls_have_ids_of_their_own_over_a_change_of_hands(records: WatchedRecords) -> None:
    first = await queued(records, ROUNDS[0], [asyncio.Event()])
    await lose(first, "killed", 100)
    second = Office(records, *ROUNDS[1:])
    await second.work()
    messages = second.inference.requests[-1]["messages"]
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert len(ids) == len(set(ids)) == 2


async def test_the_bound_on_tokens_holds_over_a_change_of_hands(records: WatchedRecords) -> None:
    first = await queued(records, ROUNDS[0], [asyncio.Event()], max_output_tokens=20)
    await lose(first, "killed", 100)
    second = Office(records, [text("a"), finish(tokens=7)])
    await second.work()
    assert second.inference.requests[0]["max_completion_tokens"] == 15


async def test_the_bound_on_rounds_holds_over_a_change_of_hands(records: WatchedRecords) -> None:
    first = await queued(records, ROUNDS[0], [asyncio.Event()])
    await lose(first, "killed", 100)
    second = Office(records, ROUNDS[1], limits=TurnLimits(rounds=2, idle_seconds=30.0, tool_seconds=30.0))
    await second.work()
    final = await second.result()
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "max_messages"})


async def test_a_cancelled_response_keeps_what_was_said_and_used(records: WatchedRecords) -> None:
    first = await queued(records, ROUNDS[0], [text("And"), asyncio.Event()])
    reader = asyncio.create_task(first.read())
    await lose(first, "killed", 100)
    held = await first.jobs.seize(ID, "w2", "cancelled")
    assert held is not None
    await first.attempt(held).run()
    final = await first.result()
    assert (final["status"], said(final)) == ("cancelled", [SAID[0], "And"])
    assert final["output"][-1]["status"] == "incomplete"
    assert final["usage"]["output_tokens"] == 5
    assert (await reader)[-1]["type"] == "response.incomplete"


async def test_a_call_that_was_cut_off_is_made_again(records: WatchedRecords) -> None:
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    first = await queued(records, [call("f", "c1", '{"a"'), asyncio.Event()], tools=tools)
    reader = asyncio.create_task(first.read())
    await lose(first, "killed", 100)
    second = Office(records, [call("f", "c1", '{"a": 1}'), finish("tool_calls")])
    await second.work()
    final = await second.result()
    assert [(item["status"], item["arguments"]) for item in final["output"]] == [
        ("incomplete", '{"a"'),
        ("completed", '{"a": 1}'),
    ]
    assert len({item["call_id"] for item in final["output"]}) == 2
    await reader


async def test_what_is_left_of_a_response_that_is_gone_goes_too(records: WatchedRecords) -> None:
    office = await queued(records, *ROUNDS)
    held = await office.claim()
    await office.archive.delete(ID)
    await office.attempt(held).run()
    assert office.inference.requests == []
    assert await office.jobs.find(ID) is None
    assert [key for key, _ in await records.range("t/", "t0", limit=10)]


# A store that fails


@pytest.mark.parametrize("steps", range(0, 60, 2))
async def test_a_store_that_is_away_for_a_while_is_waited_for(records: WatchedRecords, steps: int) -> None:
    office = await queued(records, *ROUNDS)
    held = await office.claim()
    task = asyncio.create_task(office.attempt(held).run())
    await turns(steps)
    records.away = True
    await turns(60)
    records.away = False
    async with asyncio.timeout(PATIENCE):
        await task
    final = await office.result()
    assert (final["status"], said(final)) == ("completed", SAID)
    assert len(office.inference.requests) == len(ROUNDS)


@pytest.mark.parametrize("steps", range(0, 60, 2))
async def test_a_store_that_is_away_keeps_no_server_from_ending(records: WatchedRecords, steps: int) -> None:
    office = await queued(records, *ROUNDS)
    first = office.attempt(await office.claim())
    task = asyncio.create_task(first.run())
    await turns(steps)
    records.away = True
    await turns(steps % 7)
    first.hand_over()
    async with asyncio.timeout(PATIENCE):
        await task
    assert office.inference.streaming == 0


class Unsure(WatchedRecords):
    """Records whose first commit of a key with this beginning is lost, or made, and its caller does not hear which.

    Args:
        prefix: the beginning.
        made: whether it is made.
        meanwhile: what happens before the caller is told.
    """

    def __init__(
        self, records: WatchedRecords, prefix: str, *, made: bool, meanwhile: Callable[[], Awaitable[object]]
    ) -> None:
        super().__init__(records)
        self._prefix: str | None = prefix
        self._made = made
        self._meanwhile = meanwhile

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        prefix = self._prefix
        if prefix is None or not any(op.key.startswith(prefix) for op in writes_of(ops)):
            await super().commit(ops, conditions)
            return
        self._prefix = None
        if self._made:
            await super().commit(ops, conditions)
        await self._meanwhile()
        raise ApiError(503, "The connection was lost.")


@pytest.mark.parametrize("made", [True, False])
async def test_a_server_ends_while_the_end_of_a_response_is_stored(records: WatchedRecords, made: bool) -> None:
    first = await queued(records, *ROUNDS)
    reader = asyncio.create_task(first.read())
    await turns(3)
    working: list[attempt.Attempt] = []

    async def end() -> None:
        working[0].hand_over()

    unsure = Office(Unsure(records, "t/", made=made, meanwhile=end), *ROUNDS)
    working.append(unsure.attempt(await unsure.claim()))
    async with asyncio.timeout(PATIENCE):
        await working[0].run()
    assert (await first.jobs.find(ID) is None) == made
    if not made:
        await Office(records, ROUNDS[2]).work()
    final = await first.result()
    assert (final["status"], said(final, "completed")) == ("completed", SAID)
    assert await reader == await first.journal.read_all(ID, -1)


async def test_a_reader_comes_while_nobody_knows_whether_what_was_cut_off_is_taken_back(
    records: WatchedRecords,
) -> None:
    first = await queued(records, [text("Hel"), text("lo"), asyncio.Event()])
    await lose(first, "killed", 60)
    cut = await first.journal.read_all(ID, -1)
    assert cut[-1]["type"] == "response.output_text.delta"
    readers: list[asyncio.Task[list[Json]]] = []

    async def come() -> None:
        readers.append(asyncio.create_task(first.read()))
        await turns(5)

    key = f"e/{ID}/{cut[-1]['sequence_number']:08d}"
    second = Office(Unsure(records, key, made=True, meanwhile=come), [text("Hello"), finish()])
    await second.work()
    final = await second.result()
    assert said(final) == ["Hello"]
    assert await readers[0] == await second.journal.read_all(ID, -1)


# Conversations that are compacted


SUMMARY: list[Any] = [text("They "), text("spoke."), finish(tokens=7)]
ANSWER: list[Any] = [text("Hello"), finish(tokens=5)]
TURNS: Sequence[Json] = [{"role": role, "content": "word " * 90} for role in ("user", "assistant")]


@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("steps", range(0, 45, 3))
async def test_a_conversation_is_compacted_once_whoever_is_lost(
    records: WatchedRecords, steps: int, read: bool
) -> None:
    at_100 = [{"type": "compaction", "compact_threshold": 100}]
    asked = [*TURNS, {"role": "user", "content": "hi"}]
    first = await queued(records, SUMMARY, ANSWER, input=asked, context_management=at_100)
    reader = asyncio.create_task(first.read()) if read else None
    await lose(first, "killed", steps)
    work = await first.jobs.work(ID)
    second = Office(records, *([ANSWER] if work and work.said else [SUMMARY, ANSWER]))
    if work:
        await second.work("lives")
    final = await second.result()
    assert final["status"] == "completed"
    assert final["usage"]["output_tokens"] == 12
    whole = [item for item in final["output"] if item.get("encrypted_content")]
    assert [item["type"] for item in whole] == ["compaction"]
    assert read or len(final["output"]) == 2
    if reader:
        async with asyncio.timeout(PATIENCE):
            assert await reader == await second.journal.read_all(ID, -1)
    if second.inference.requests:
        assert "They spoke." in second.inference.requests[-1]["messages"][0]["content"]
