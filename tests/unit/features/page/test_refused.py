"""Requests that are refused before there is a response leave a bounded row, which the lists of the page have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError, bad_request
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.feature import Refused
from llama_stack_responses.features.page.lists import ListFilter, Lists
from llama_stack_responses.features.page.refused.rows import PREFIX, RefusedRequests
from llama_stack_responses.features.page.refused.writer import RefusedWriter
from llama_stack_responses.features.page.search.box import searched
from llama_stack_responses.features.page.stored import open_store
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Condition, Op, after_prefix
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, finish, text
from tests.unit.service.test_short_requests import server

type Json = dict[str, Any]

ADA = Owner("ada")
BOB = Owner("bob")
HOSTILE: list[Any] = [
    None,
    7,
    [],
    [None, 3, "x"],
    [{"role": "user"}],
    [{"role": "user", "content": 4}],
    [{"role": "user", "content": [None, {"text": 5}, {"text": {}}]}],
    {7: 8},
]


class FailingRecords(MemoryRecords):
    """A store that can be unavailable."""

    fails = False

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        if self.fails:
            raise ApiError(503, "The store does not answer.")
        await super().commit(ops, conditions)


@pytest.fixture
def records() -> FailingRecords:
    return FailingRecords()


def refused(owner: Owner = ADA, at: float = 0.0, body: Any = None, error: ApiError | None = None) -> Refused:
    error = error or bad_request("Wrong.", "input", "invalid_value")
    return Refused(owner, error, body, "req_1", at)


async def rows(records: MemoryRecords, owner: Owner = ADA) -> list[Json]:
    return [row async for row in RefusedRequests(records).every(owner)]


async def kept(records: MemoryRecords, *requests: Refused, per_user: int = 100) -> list[Json]:
    """Return the rows of Ada after these requests."""
    now, writer = await records.now(), RefusedWriter(records, 1, per_user)
    for each in requests:
        writer.add(Refused(each.owner, each.error, each.body, each.request_id, now + each.at))
    await writer.write()
    return await rows(records)


async def test_row_says_what_was_refused_and_why(records: FailingRecords) -> None:
    body = {"model": "m", "input": [{"role": "user", "content": "Why  so?"}], "metadata": {"team": "a", "x": 5}}
    [row] = await kept(records, refused(body=body))
    expected = {
        "status": "refused",
        "http_status": 400,
        "error": "invalid_value",
        "message": "Wrong.",
        "param": "input",
        "model": "m",
        "words": "Why so?",
        "metadata": {"team": "a"},
        "request_id": "req_1",
    }
    assert {name: row[name] for name in expected} == expected
    assert await RefusedRequests(records).find(ADA, row["id"]) == row
    assert searched("req_1").says(row)
    with pytest.raises(ApiError, match="not found"):
        await RefusedRequests(records).find(BOB, row["id"])


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ApiError(429, "Too many.", code="rate_limit_exceeded"), (429, "rate_limit_exceeded", "Too many.")),
        (
            ApiError(503, "The store does not answer.", code="server_error"),
            (503, "server_error", "The store does not answer."),
        ),
    ],
)
async def test_other_statuses_leave_rows_too(
    records: FailingRecords, error: ApiError, shown: tuple[int, str, str]
) -> None:
    [row] = await kept(records, refused(error=error))
    assert (row["http_status"], row["error"], row["message"]) == shown


async def test_rows_have_a_retention_of_their_own() -> None:
    clock = SimpleNamespace(now=1_000_000.0)
    records = MemoryRecords(clock=lambda: clock.now)
    writer = RefusedWriter(records, 2, 100)
    writer.add(refused(at=clock.now))
    await writer.write()
    clock.now += 2 * 86_400 - 1
    assert len(await rows(records)) == 1
    clock.now += 2
    assert await rows(records) == []


@pytest.mark.parametrize("store", [False, 0, "false"])
async def test_row_of_a_request_that_asks_to_store_nothing_has_nothing_that_the_user_wrote(
    records: FailingRecords, store: Any
) -> None:
    body = {"model": "m", "input": "private", "metadata": {"a": "private"}, "store": store}
    [row] = await kept(records, refused(body=body, error=bad_request("Invalid: 'private'.", "input", "invalid_value")))
    assert (row["http_status"], row["error"], row["param"], row["model"]) == (400, "invalid_value", "input", "m")
    assert (row["words"], row["message"], row["metadata"], row["request_id"]) == ("", "", {}, "req_1")
    assert "private" not in str(row)


async def test_message_that_is_cut_says_so(records: FailingRecords) -> None:
    rows = await kept(records, refused(error=ApiError(400, "x" * 500)), refused(error=ApiError(400, "x" * 501), at=1))
    assert [(len(row["message"]), row["message"][-1]) for row in rows] == [(500, "x"), (500, "…")]


@pytest.mark.parametrize("given", HOSTILE)
async def test_row_of_a_malformed_request_has_no_words(records: FailingRecords, given: Any) -> None:
    [row] = await kept(records, refused(body={"model": given, "input": given, "metadata": given}))
    assert (row["words"], row["model"], row["metadata"]) == ("", "", {})


async def test_row_is_small_whatever_the_request_holds(records: FailingRecords) -> None:
    long = "x" * 100_000 + "\ud800"
    many = [{"role": "user", "content": [{"text": ""}] * 1000 + [{"text": long}]}] * 1000
    error = ApiError(400, long, code=long, param=long)
    await kept(
        records,
        refused(body={"model": long, "input": long, "metadata": {long: long}}, error=error),
        refused(body={"model": long, "input": many, "metadata": {str(each): long[:40] for each in range(1000)}}),
    )
    stored = await records.range(PREFIX, after_prefix(PREFIX), limit=10)
    assert len(stored) == 2
    assert all(len(str(row)) < 5_000 for row in await rows(records))


async def test_newest_rows_of_a_user_are_kept_whatever_others_send(records: FailingRecords) -> None:
    await kept(records, refused(BOB))
    writer, now = RefusedWriter(records, 1, 20), await records.now()
    for number in range(200):
        writer.add(refused(at=now + number, body={"model": str(number)}))
        if number % 10 == 9:
            await writer.write()
    shown = [row["model"] for row in await rows(records)]
    assert 20 <= len(shown) <= 22
    assert shown == [str(each) for each in range(200 - len(shown), 200)]
    assert len(await rows(records, BOB)) == 1


async def test_rows_wait_for_a_store_that_does_not_answer_and_stay_bounded(records: FailingRecords) -> None:
    writer, now = RefusedWriter(records, 1, 1000), await records.now()
    records.fails = True
    for number in range(300):
        writer.add(refused(at=now + number, body={"model": str(number)}))
        if number % 100 == 99:
            with pytest.raises(ApiError):
                await writer.write()
    records.fails = False
    await writer.stop()
    assert [row["model"] for row in await rows(records)] == [str(each) for each in range(250, 300)]


async def test_owner_exports_and_deletes_the_rows(records: FailingRecords) -> None:
    await kept(records, refused(body={"model": "a"}), refused(body={"model": "b"}, at=1), refused(BOB))
    store = open_store(records, Decoder())
    assert [each.fields["model"] async for each in store.export(ADA)] == ["a", "b"]
    for each in [each async for each in store.ids_of(ADA)]:
        await store.delete(ADA, each)
    assert await rows(records) == []
    assert len(await rows(records, BOB)) == 1


@pytest.fixture
async def impl(records: FailingRecords) -> AsyncIterator[OpenAIResponsesImpl]:
    """A server whose model answers at once."""
    inference = FakeInference(*([text("Yes."), finish()] for _ in range(20)))
    created = server(records, inference, SingleUserAccess())
    yield created
    await created.shutdown()


async def test_pages_merge_responses_and_refused_requests_in_both_orders(
    records: FailingRecords, impl: OpenAIResponsesImpl
) -> None:
    now, writer = await records.now(), RefusedWriter(records, 1, 100)
    for number in range(5):
        run = await impl.create({"model": "m", "input": f"asked {number}"})
        assert isinstance(run, ForegroundRun)
        await run.finish()
        for after in range(3):
            body = {"model": "m" if after else "other", "input": f"refused {number}"}
            writer.add(refused(ANONYMOUS, at=now - 60 * number + after, body=body))
    await writer.write()
    lists = Lists(impl.archive, impl.jobs, RefusedRequests(records))

    async def listed(wanted: ListFilter, order: Any) -> list[Json]:
        found, after = list[Json](), None
        while True:
            page = await lists.page(ANONYMOUS, wanted, after, 4, order)
            found += page["data"]
            if not (after := page["next"]):
                return found

    everything = await listed(ListFilter(), "desc")
    assert len({row["id"] for row in everything}) == len(everything) == 20
    assert [row["created_at"] for row in everything] == sorted((row["created_at"] for row in everything), reverse=True)
    assert [row["id"] for row in await listed(ListFilter(), "asc")] == [row["id"] for row in everything[::-1]]
    for wanted, count in [
        (ListFilter(statuses=frozenset({"refused"})), 15),
        (ListFilter(statuses=frozenset({"completed"})), 5),
        (ListFilter(statuses=frozenset({"refused", "completed"}), model="m"), 15),
        (ListFilter(searched=searched("refused 3")), 3),
        (ListFilter(tokens=1), 5),
    ]:
        assert len(await listed(wanted, "desc")) == count


@pytest.mark.parametrize("store", [False, True])
async def test_failed_response_that_is_not_stored_is_noted_and_counted_once(
    records: FailingRecords, store: bool
) -> None:
    noted: list[Refused] = []
    inference = FakeInference([text("Well"), ApiError(502, "The model server has ended the answer early.")])
    impl = server(records, inference, SingleUserAccess(), on_refused=[noted.append])
    body = {"model": "m", "input": "Why?", "store": store}
    run = await impl.create(body)
    assert isinstance(run, ForegroundRun)
    impl.refusals.watch(run, body)
    await run.wait_ended()
    await asyncio.sleep(0)
    assert run.response["status"] == "failed"
    assert [each.error for each in noted] == ([] if store else [run.error])
    assert impl.refusals._activity.of(impl.access.current_user()).failed == 1
    await impl.shutdown()


async def test_response_that_does_not_begin_is_noted_as_refused(records: FailingRecords) -> None:
    noted: list[Refused] = []
    go = asyncio.Event()
    impl = server(records, FakeInference([go, finish()]), SingleUserAccess(), on_refused=[noted.append])
    body = {"model": "m", "input": "Why?"}
    run = await impl.create(body)
    assert isinstance(run, ForegroundRun)
    impl.refusals.watch(run, body)
    run.shut_down()
    await run.wait_ended()
    await asyncio.sleep(0)
    assert [(each.error.status, each.body) for each in noted] == [(503, body)]
    await impl.shutdown()
