"""On every backend, a change whose reply is lost is applied once, and its client gets the right outcome or an unknown one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.core.errors import ApiError, OutcomeUnknown
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.shapes import DEFAULT_LIMITS
from llama_stack_responses.generation.timeline import Timeline
from llama_stack_responses.inputs.history import History, HistoryBounds, HistoryReader
from llama_stack_responses.inputs.resolver import ResolvedInput, StoredInput
from llama_stack_responses.intervals import DEFAULT, Intervals
from llama_stack_responses.jobs.foreground_leases import Lease
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.sealing.sealed_items import SealedItems
from llama_stack_responses.service.conversations import Conversations
from llama_stack_responses.service.response_writer import ResponseWriter
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.ends import Ended, Ends
from llama_stack_responses.store.records import Condition, Delete, Op, Put, Records, Unanswered, committed
from llama_stack_responses.stream.transcript import Transcript
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED, assistant, response, user
from tests.contract.test_leftovers import left
from tests.support.records import WatchedRecords, settled
from tests.support.waiting import turns
from tests.unit.jobs.harness import ANNA, HURRIED, ID, PATIENCE, ROUNDS, ProcessHarness

pytestmark = pytest.mark.needs("transactions")

type Json = dict[str, Any]
type Act = Callable[[], Awaitable[object]]

ITEM: Final[Json] = {"type": "message", "role": "user", "content": "Hi."}
MADE: Final = pytest.mark.parametrize("committed", [True, False], ids=["made", "not made"])


class ReplyLosingRecords(WatchedRecords):
    """Records of a server that loses replies of the store.

    Attributes:
        losing: how many further commits lose their replies.
        committed: whether those commits are applied.
        stays_away: whether the store cannot be reached after such a commit.
        meanwhile: what others do after such a commit.
        lost: how many replies were lost.
    """

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self.losing = self.lost = 0
        self.committed = True
        self.stays_away = False
        self.meanwhile: Act | None = None

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        if not self.losing or self.away:
            await super().commit(ops, conditions)
            return
        self.losing -= 1
        self.lost += 1
        applied = self.committed and await committed(self._records, ops, conditions)
        if self.meanwhile:
            await self.meanwhile()
        self.away = self.stays_away
        raise Unanswered("The connection was lost.", lambda: self._pass("settle", settled(applied=applied)))


RETRIES_AT_ONCE: Final = replace(HURRIED, store_retry_seconds=0.0)
GIVES_UP: Final = replace(RETRIES_AT_ONCE, unknown_outcome_seconds=0.05)


class Server(ProcessHarness):
    """A process on a store that loses replies."""

    def __init__(self, records: Records, intervals: Intervals = RETRIES_AT_ONCE) -> None:
        self.lossy = ReplyLosingRecords(records)
        super().__init__(self.lossy, *ROUNDS, intervals=intervals)
        self.archive = Archive(self.lossy, clock=lambda: CREATED)
        self.background = self.background_jobs()
        self.leases: dict[str, Lease | None] = {}
        self.intervals = intervals
        history_reader = HistoryReader(self.archive, self.access, HistoryBounds(2**20, 2**20, 2**20))
        self.conversations = Conversations(
            self.archive,
            history_reader,
            self.access,
            SealedItems(self.sealer, 2**20),
            DEFAULT_LIMITS,
            LargeWork(),
            intervals,
        )

    @contextmanager
    def losing(self, committed: bool, commits: int = 1) -> Iterator[None]:
        """Lose the replies to the next commits."""
        self.lossy.committed, self.lossy.losing, before = committed, commits, self.lossy.lost
        yield
        assert self.lossy.lost == before + commits

    async def streamed(self, **fields: Any) -> Json:
        """Begin a streamed response on this server."""
        created = response(status="in_progress", **fields)
        self.leases[created["id"]] = await self.background.foreground.acquire(created, **stored())
        return created

    def lease_of(self, response: Json) -> Lease:
        """Return the lease of a response that began here."""
        lease = self.leases[response["id"]]
        assert lease
        return lease

    async def keep(self, final: Json, on: StoredInput, **fields: Any) -> None:
        """Store the end of a response: of a streamed one that began here, or of one that was not streamed.

        Args:
            on: its input.
            fields: further fields of its request.
        """
        request = parse_create({"model": "m", "input": "Hi.", **fields})
        start, lease = ResolvedInput(request, [], on, History(None, [])), self.leases.get(final["id"])
        transcript, generation = (
            Transcript() if lease else None,
            cast("Any", SimpleNamespace(exchanges={}, left_out=None)),
        )
        writer = ResponseWriter(
            self.archive, start, generation, Timeline(), transcript, lease, intervals=self.intervals
        )
        await writer.keep(final)


def stored() -> StoredInput:
    return StoredInput(owner=ANNA, base=None, base_items=[], input_items=[user("Hi.")])


def done(created: Json, **fields: Any) -> Json:
    return created | {"status": "completed", "output": [assistant("Hello.")]} | fields


@pytest.fixture
def here(records: Records) -> Server:
    return Server(records)


# Foreground responses


@MADE
async def test_streamed_response_is_stored_despite_lost_reply(here: Server, committed: bool) -> None:
    final = done(await here.streamed())
    with here.losing(committed):
        await here.keep(final, stored())
    found = await here.archive.load(final["id"])
    assert found is not None
    assert found.response == final
    assert [key for key in await left(here.records) if key[0] in "ov"] == []


@MADE
async def test_unstreamed_response_is_stored_once_despite_lost_reply(here: Server, committed: bool) -> None:
    final = done(response(status="in_progress"))
    with here.losing(committed):
        await here.keep(final, stored())
    found = await here.archive.load(final["id"])
    assert found is not None
    assert (found.response, found.version) == (final, 1)


@MADE
@pytest.mark.parametrize("kept", [True, False])
async def test_turn_is_added_to_conversation_once_despite_lost_reply(here: Server, committed: bool, kept: bool) -> None:
    conversation = await here.conversations.create({})
    began = await here.streamed(conversation={"id": conversation["id"]})
    final, on = done(began), stored()
    with here.losing(committed):
        await here.keep(final, on, store=kept, conversation=conversation["id"])
    page = await here.conversations.list_items(conversation["id"], limit=100, after=None, order="asc")
    assert [item["id"] for item in page.data] == [on["input_items"][0]["id"], final["output"][0]["id"]]


@MADE
async def test_response_is_unknown_during_outage_then_matches_store(records: Records, committed: bool) -> None:
    here = Server(records, GIVES_UP)
    final = done(await here.streamed())
    here.lossy.stays_away = True
    with here.losing(committed), pytest.raises(OutcomeUnknown, match=final["id"]) as unknown:
        await here.keep(final, stored())
    assert (unknown.value.status, unknown.value.retry_after) == (503, None)
    here.lease_of(final).untrack()
    here.lossy.away = False
    await here.background.foreground.flush_unstored()
    found = await here.archive.load(final["id"])
    assert found is not None
    assert found.response["status"] == ("completed" if committed else "failed")
    assert [key for key in await left(here.records) if key[0] in "ov"] == []


async def test_response_failed_by_other_server_during_lost_reply_stays_failed(
    here: Server, records: Records, clock: Clock
) -> None:
    final = done(await here.streamed())
    there = Server(records)

    async def buried() -> None:
        clock.now += DEFAULT.lease_seconds + 1
        await there.background._heartbeat.renew()
        await there.background.foreground.fail_abandoned()

    lost = here.lossy.commit

    async def commit(ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        try:
            await lost(ops, conditions)
        except Unanswered:
            await buried()
            raise

    monkeypatch_commit(here.lossy, commit)
    with here.losing(committed=False), pytest.raises(ApiError, match="The server ended"):
        await here.keep(final, stored())


async def test_response_that_the_store_refuses_is_stored_as_failed_later(here: Server) -> None:
    final, works = done(await here.streamed()), here.lossy.commit

    async def refuse(_: Sequence[Op], __: Sequence[Condition] = ()) -> None:
        raise ApiError(507, "The store is full.")

    monkeypatch_commit(here.lossy, refuse)
    with pytest.raises(ApiError, match="The store is full"):
        await here.keep(final, stored())
    monkeypatch_commit(here.lossy, works)
    await here.background.foreground.flush_unstored()
    found = await here.archive.load(final["id"])
    assert found is not None
    assert (found.response["status"], found.response["error"]["message"]) == ("failed", "The store is full.")


def monkeypatch_commit(records: ReplyLosingRecords, commit: Callable[..., Awaitable[None]]) -> None:
    """Replace the `commit` of the records."""
    records.commit = commit  # type: ignore[method-assign,assignment]


@MADE
async def test_lease_with_lost_reply_is_refused_and_leaves_no_records(here: Server, committed: bool) -> None:
    await here.streamed()  # this renews the worker's heartbeat
    began = response(status="in_progress")
    with here.losing(committed), pytest.raises(ApiError) as refused:
        await here.background.foreground.acquire(began, **stored())
    assert refused.value.status == 503
    await here.background.foreground.flush_unstored()
    assert [key for key in await left(here.records) if key[0] in "ov" and began["id"] in key] == []


async def test_lease_withdrawal_during_outage_is_committed_later(here: Server) -> None:
    began = await here.streamed()
    here.lossy.away = True
    with pytest.raises(ApiError):
        await here.lease_of(began).withdraw()
    here.lossy.away = False
    here.lease_of(began).untrack()
    await here.background.foreground.flush_unstored()
    assert [key for key in await left(here.records) if key[0] in "ov"] == []
    assert await here.archive.load(began["id"]) is None


async def test_lease_of_running_response_is_not_withdrawn(here: Server) -> None:
    await here.streamed()
    await here.background.foreground.flush_unstored()
    assert sorted(key[0] for key in await left(here.records)) == ["o", "v"]


# Background responses


@MADE
async def test_submission_is_queued_once_despite_lost_reply(here: Server, committed: bool) -> None:
    with here.losing(committed):
        await here.submit(here.background)
    await here.run_job()
    assert (await here.result())["status"] == "completed"
    assert await here.jobs.claim("w2") is None


@MADE
async def test_response_under_key_begins_once_despite_lost_reply(here: Server, committed: bool) -> None:
    await here.background._heartbeat.ensure()
    with here.losing(committed):
        await here.open(here.background)
    async with asyncio.timeout(PATIENCE):
        while await here.jobs.find(ID):
            await turns(1)
    assert (await here.result(background=False))["status"] == "completed"
    assert len(here.inference.requests) == len(ROUNDS)


@MADE
async def test_cancel_takes_effect_despite_lost_reply(here: Server, committed: bool) -> None:
    await here.submit(here.background)
    with here.losing(committed):
        async with asyncio.timeout(PATIENCE):
            await here.background.cancel(ID)
    assert (await here.result())["status"] == "cancelled"


@MADE
async def test_waiting_responses_are_cancelled_together_despite_lost_reply(here: Server, committed: bool) -> None:
    ids = [f"resp_{number}" for number in range(3)]
    for response_id in ids:
        await here.submit(here.background, response_id)
    with here.losing(committed):
        async with asyncio.timeout(PATIENCE):
            await here.background.cancel_unbegun(ids)
    assert [(await here.result(each))["status"] for each in ids] == ["cancelled"] * 3
    assert await here.jobs.claim("w2") is None


@MADE
async def test_job_runs_once_despite_lost_replies(here: Server, committed: bool) -> None:
    await here.submit(here.background)
    job = await here.claim()
    here.lossy.committed, here.lossy.losing = committed, 3
    async with asyncio.timeout(PATIENCE):
        await here.runner(job).run()
    assert (await here.result())["status"] == "completed"
    assert len(here.inference.requests) == len(ROUNDS)


# Conversations


@MADE
async def test_conversation_changes_are_applied_once_despite_lost_replies(here: Server, committed: bool) -> None:
    items = {"items": [ITEM]}
    with here.losing(committed):
        conversation = await here.conversations.create(items)
    conversation_id = conversation["id"]
    with here.losing(committed):
        [added] = await here.conversations.add_items(conversation_id, items)
    page = await here.conversations.list_items(conversation_id, limit=100, after=None, order="asc")
    assert [item["id"] for item in page.data][1:] == [added["id"]]
    with here.losing(committed):
        assert (await here.conversations.update(conversation_id, {"metadata": {"a": "b"}}))["metadata"] == {"a": "b"}
    with here.losing(committed):
        await here.conversations.delete_item(conversation_id, added["id"])
    page = await here.conversations.list_items(conversation_id, limit=100, after=None, order="asc")
    assert added["id"] not in [item["id"] for item in page.data]
    with here.losing(committed):
        await here.conversations.delete(conversation_id)
    await here.archive.sweep()
    assert await left(here.records) == []


@pytest.mark.parametrize("way", ["response", "unstored response", "addition"])
async def test_item_deleted_during_lost_reply_is_not_added_again(here: Server, records: Records, way: str) -> None:
    conversation_id = (await here.conversations.create({}))["id"]
    there = Server(records).conversations
    began = response(status="in_progress", conversation={"id": conversation_id})
    final, on = done(began), stored()

    async def listed() -> list[str]:
        page = await there.list_items(conversation_id, limit=100, after=None, order="asc")
        return [item["id"] for item in page.data]

    async def deleted() -> None:
        await there.delete_item(conversation_id, (await listed())[0])

    here.lossy.meanwhile = deleted
    with here.losing(committed=True):
        if way == "addition":
            [_, second] = await here.conversations.add_items(conversation_id, {"items": [ITEM, ITEM]})
        else:
            await here.keep(final, on, store=way == "response", conversation=conversation_id)
            second = final["output"][0]
    assert await listed() == [second["id"]]


async def test_objects_deleted_during_lost_replies_stay_deleted(here: Server, records: Records) -> None:
    there, final, made = Server(records), done(response(status="in_progress")), list[str]()

    async def deleted() -> None:
        rows = await records.range("c/", "c0", limit=9)
        made.extend(key.removeprefix("c/") for key, _ in rows)
        for each in made:
            await there.conversations.delete(each)
        await there.archive.delete(final["id"])

    here.lossy.meanwhile = deleted
    with here.losing(committed=True):
        await here.keep(final, stored())
    assert await here.archive.load(final["id"]) is None
    with here.losing(committed=True):
        created = await here.conversations.create({"items": [ITEM]})
    assert made == [created["id"]]
    await here.archive.sweep()
    assert await left(here.records) == []


async def test_change_with_unknown_outcome_reports_it(records: Records) -> None:
    here = Server(records, GIVES_UP)
    conversation = await here.conversations.create({})
    here.lossy.stays_away = True
    with here.losing(committed=True), pytest.raises(OutcomeUnknown, match="delete it again"):
        await here.conversations.delete(conversation["id"])


# Clean-up after a commit


async def test_save_succeeds_although_its_cleanup_fails(records: Records) -> None:
    harness = Server(records)
    first = done(response(status="in_progress", instructions="a" * 300))
    await harness.archive.save(first, **stored())
    cut = WatchedRecords(records)

    async def away(name: str) -> None:
        cut.away = name == "commit"

    cut._after = away
    cleaning = Server(cut)
    on = stored()
    assert await cleaning.archive.save(first | {"instructions": "b" * 300}, **on) == 2
    cut._after, cut.away = None, False
    again = {"id": new_id("resp")}
    await harness.archive.save(first | again, **on)
    cut._after = away
    assert await cleaning.archive.delete(again["id"])


async def test_end_whose_rows_were_taken_meanwhile_is_not_written_again(records: Records) -> None:
    lossy = ReplyLosingRecords(records)
    ends = Ends(lossy, [lambda _: [Put("wh/e/1", b"event"), Put("u/c/1", b"count")]], [], 0.0)

    async def send() -> None:
        await records.commit([Delete("wh/e/1")])

    lossy.losing, lossy.meanwhile = 1, send
    await ends.unstored(Ended(response(), ANNA, None, CREATED))

    assert lossy.lost == 1
    assert [*await records.get_many(["wh/e/1", "u/c/1"])] == ["u/c/1"]
