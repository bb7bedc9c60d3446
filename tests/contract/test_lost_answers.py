"""On every backend: a change whose answer is lost is made once, and nobody is told what may not be so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError, OutcomeUnknown
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.schema.shapes import DEFAULT_LIMITS
from llama_stack_responses.core.stream.transcript import Transcript
from llama_stack_responses.inputs.history import Historian
from llama_stack_responses.inputs.resolver import Stored
from llama_stack_responses.jobs.queue import LEASE
from llama_stack_responses.service.conversations import Conversations
from llama_stack_responses.service.persistence import Keeper
from llama_stack_responses.store import outcome
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import Condition, Conflict, Op, Records, Unanswered
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED, assistant, response, user
from tests.contract.test_leftovers import left
from tests.support.records import WatchedRecords
from tests.unit.jobs.office import ANNA, ID, PATIENCE, ROUNDS, Office, turns

pytestmark = pytest.mark.needs("work")

type Json = dict[str, Any]
type Act = Callable[[], Awaitable[object]]

MADE: Final = pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])


class Lossy(WatchedRecords):
    """Records of a server whose answers get lost.

    Attributes:
        losing: the answers to how many commits are lost from now on.
        made: whether those commits are made all the same.
        stays_away: whether the store cannot be reached after such a commit.
        lost: how many were lost.
    """

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self.losing = self.lost = 0
        self.made = True
        self.stays_away = False

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        if not self.losing or self.away:
            await super().commit(ops, conditions)
            return
        self.losing -= 1
        self.lost += 1
        if self.made:
            with suppress(Conflict):
                await super().commit(ops, conditions)
        self.away = self.stays_away
        raise Unanswered("The connection was lost.")


class Server(Office):
    """A process on a store whose answers get lost."""

    def __init__(self, records: Records) -> None:
        self.lossy = Lossy(records)
        super().__init__(self.lossy, *ROUNDS)
        self.archive = Archive(self.lossy, clock=lambda: CREATED)
        self.workers = self.crew()
        self.keeper = Keeper(self.archive, self.workers)
        historian = Historian(self.archive, self.access, 2**20)
        self.conversations = Conversations(self.archive, historian, self.access, self.sealer, DEFAULT_LIMITS)

    @contextmanager
    def losing(self, made: bool, commits: int = 1) -> Iterator[None]:
        """Loses the answers to the next commits."""
        self.lossy.made, self.lossy.losing, before = made, commits, self.lossy.lost
        yield
        assert self.lossy.lost == before + commits

    async def vouched(self, **fields: Any) -> Json:
        """A streamed response that is made here."""
        made = response(status="in_progress", **fields)
        await self.workers.vouch(made, **stored())
        return made


def stored() -> Stored:
    return Stored(owner=ANNA, base=None, base_items=[], input_items=[user("Hi.")])


def done(made: Json, **fields: Any) -> Json:
    return made | {"status": "completed", "output": [assistant("Hello.")]} | fields


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "_RETRY", 0.0)


@pytest.fixture
def here(records: Records) -> Server:
    return Server(records)


# Foreground responses


@MADE
async def test_streamed_response_whose_answer_is_lost_is_stored(here: Server, made: bool) -> None:
    final = done(await here.vouched())
    with here.losing(made):
        await here.keeper.keep_vouched(final, Transcript(), stored(), {})
    found = await here.archive.load(final["id"])
    assert found is not None
    assert found.response == final
    assert [key for key in await left(here.records) if key[0] in "ov"] == []


@MADE
async def test_unstreamed_response_whose_answer_is_lost_is_stored_once(here: Server, made: bool) -> None:
    final = done(response(status="in_progress"))
    with here.losing(made):
        await here.keeper.keep(final, stored(), {})
    found = await here.archive.load(final["id"])
    assert found is not None
    assert (found.response, found.version) == (final, 1)


@MADE
@pytest.mark.parametrize("kept", [True, False])
async def test_turn_whose_answer_is_lost_is_in_its_conversation_once(here: Server, made: bool, kept: bool) -> None:
    conversation = await here.conversations.create({})
    began = await here.vouched(conversation={"id": conversation["id"]})
    final, on = done(began), stored()
    with here.losing(made):
        if kept:
            await here.keeper.keep_vouched(final, Transcript(), on, {})
        else:
            await here.keeper.join(final, on, {})
    page = await here.conversations.list_items(conversation["id"], limit=100, after=None, order="asc")
    assert [item["id"] for item in page.data] == [on["input_items"][0]["id"], final["output"][0]["id"]]


@MADE
async def test_response_whose_store_stays_away_is_unknown_and_then_as_the_store_says(
    here: Server, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    monkeypatch.setattr(outcome, "PATIENCE", 0.05)
    final = done(await here.vouched())
    here.lossy.stays_away = True
    with here.losing(made), pytest.raises(OutcomeUnknown, match=final["id"]) as unknown:
        await here.keeper.keep_vouched(final, Transcript(), stored(), {})
    assert (unknown.value.status, unknown.value.retry_after) == (503, None)
    here.workers.ended_here(final["id"])
    here.lossy.away = False
    await here.workers._vouchers.own_up()
    found = await here.archive.load(final["id"])
    assert found is not None
    assert found.response["status"] == ("completed" if made else "failed")
    assert [key for key in await left(here.records) if key[0] in "ov"] == []


async def test_response_that_was_taken_for_dead_while_its_answer_was_lost_has_failed(
    here: Server, records: Records, clock: Clock
) -> None:
    final = done(await here.vouched())
    there = Server(records)

    async def buried() -> None:
        clock.now += LEASE + 1
        await there.workers._vouchers.bury()

    lost = here.lossy.commit

    async def commit(ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        try:
            await lost(ops, conditions)
        except Unanswered:
            await buried()
            raise

    monkeypatch_commit(here.lossy, commit)
    with here.losing(made=False), pytest.raises(ApiError, match="The server ended"):
        await here.keeper.keep_vouched(final, Transcript(), stored(), {})


def monkeypatch_commit(records: Lossy, commit: Callable[..., Awaitable[None]]) -> None:
    """Has the records commit in this way."""
    records.commit = commit  # type: ignore[method-assign,assignment]


@MADE
async def test_vouching_whose_answer_is_lost_refuses_and_leaves_nothing(here: Server, made: bool) -> None:
    await here.vouched()  # says that the worker lives
    began = response(status="in_progress")
    with here.losing(made), pytest.raises(ApiError) as refused:
        await here.workers.vouch(began, **stored())
    assert refused.value.status == 503
    await here.workers._vouchers.own_up()
    assert [key for key in await left(here.records) if key[0] in "ov" and began["id"] in key] == []


async def test_withdrawal_that_the_store_did_not_take_is_made_later(here: Server) -> None:
    began = await here.vouched()
    here.lossy.away = True
    with pytest.raises(ApiError):
        await here.workers.withdraw(began["id"])
    here.lossy.away = False
    here.workers.ended_here(began["id"])
    await here.workers._vouchers.own_up()
    assert [key for key in await left(here.records) if key[0] in "ov"] == []
    assert await here.archive.load(began["id"]) is None


async def test_response_that_is_being_made_is_not_withdrawn(here: Server) -> None:
    await here.vouched()
    await here.workers._vouchers.own_up()
    assert sorted(key[0] for key in await left(here.records)) == ["o", "v"]


# Background responses


@MADE
async def test_submission_whose_answer_is_lost_is_queued_once(here: Server, made: bool) -> None:
    with here.losing(made):
        await here.submit(here.workers)
    await here.work()
    assert (await here.result())["status"] == "completed"
    assert await here.jobs.claim("w2") is None


@MADE
async def test_response_under_a_key_whose_answer_is_lost_is_begun_once(here: Server, made: bool) -> None:
    await here.workers._come_alive()
    with here.losing(made):
        await here.open(here.workers)
    async with asyncio.timeout(PATIENCE):
        while await here.jobs.find(ID):
            await turns(1)
    assert (await here.result(background=False))["status"] == "completed"
    assert len(here.inference.requests) == len(ROUNDS)


@MADE
async def test_cancel_whose_answer_is_lost_ends_it(here: Server, made: bool) -> None:
    await here.submit(here.workers)
    with here.losing(made):
        async with asyncio.timeout(PATIENCE):
            await here.workers.cancel(ID)
    assert (await here.result())["status"] == "cancelled"


@MADE
async def test_attempt_whose_answers_are_lost_makes_the_response_once(
    here: Server, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    monkeypatch.setattr("llama_stack_responses.jobs.runner.RETRY", 0.0)
    monkeypatch.setattr("llama_stack_responses.jobs.runner._PAUSE", 0.0)
    await here.submit(here.workers)
    held = await here.claim()
    here.lossy.made, here.lossy.losing = made, 3
    async with asyncio.timeout(PATIENCE):
        await here.attempt(held).run()
    assert (await here.result())["status"] == "completed"
    assert len(here.inference.requests) == len(ROUNDS)


# Conversations


@MADE
async def test_changes_of_a_conversation_whose_answers_are_lost_are_made_once(here: Server, made: bool) -> None:
    items = {"items": [{"type": "message", "role": "user", "content": "Hi."}]}
    with here.losing(made):
        conversation = await here.conversations.create(items)
    conversation_id = conversation["id"]
    with here.losing(made):
        [added] = await here.conversations.add_items(conversation_id, items)
    page = await here.conversations.list_items(conversation_id, limit=100, after=None, order="asc")
    assert [item["id"] for item in page.data][1:] == [added["id"]]
    with here.losing(made):
        assert (await here.conversations.update(conversation_id, {"metadata": {"a": "b"}}))["metadata"] == {"a": "b"}
    with here.losing(made):
        await here.conversations.delete_item(conversation_id, added["id"])
    page = await here.conversations.list_items(conversation_id, limit=100, after=None, order="asc")
    assert added["id"] not in [item["id"] for item in page.data]
    with here.losing(made):
        await here.conversations.delete(conversation_id)
    await here.archive.sweep()
    assert await left(here.records) == []


async def test_change_whose_outcome_nobody_can_find_out_says_so(here: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "PATIENCE", 0.05)
    conversation = await here.conversations.create({})
    here.lossy.stays_away = True
    with here.losing(made=True), pytest.raises(OutcomeUnknown, match="delete it again"):
        await here.conversations.delete(conversation["id"])


# What follows a commit


async def test_save_whose_cleaning_up_fails_is_a_save(records: Records) -> None:
    office = Server(records)
    first = done(response(status="in_progress", instructions="a" * 300))
    await office.archive.save(first, **stored())
    cut = WatchedRecords(records)

    async def away(name: str) -> None:
        cut.away = name == "commit"

    cut._after = away
    cleaning = Server(cut)
    on = stored()
    assert await cleaning.archive.save(first | {"instructions": "b" * 300}, **on) == 2
    cut._after, cut.away = None, False
    again = {"id": new_id("resp")}
    await office.archive.save(first | again, **on)
    cut._after = away
    assert await cleaning.archive.delete(again["id"])
