"""The rows of an owner's list, on every backend."""

from __future__ import annotations

from typing import Any, Final

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.list_row_pages import Span
from llama_stack_responses.store.saving import Recording
from tests.contract.conversations import CREATED, Json, assistant, response, user
from tests.contract.counting_proxy import CountingProxy

pytestmark = pytest.mark.needs("many_calls")

ALICE = Owner("alice", {"teams": ["search"]})
BOB = Owner("bob")


async def save(archive: Archive, number: int, owner: Owner = ALICE, **fields: Any) -> Json:
    created = response(
        assistant(f"answer {number}"), created_at=CREATED + number, completed_at=CREATED + number + 3, **fields
    )
    await archive.save(created, owner=owner, base=None, input_items=[user(f"question\n {number}")])
    return created


async def test_row_shows_properties_of_response(archive: Archive) -> None:
    call = {"id": "fc_1", "type": "function_call", "name": "f", "call_id": "c", "arguments": "{}", "status": "failed"}
    created = response(call, assistant("An answer."), metadata={"team": "search"}, conversation=None)
    recording = Recording(timing={"total_ms": 4210})
    await archive.save(created, owner=ALICE, base=None, input_items=[user("Why?")], recording=recording)
    [row] = (await archive.listing.page(ALICE, Span(), 9)).rows
    assert row == {
        "id": created["id"],
        "status": "completed",
        "model": created["model"],
        "created_at": CREATED,
        "seconds": 4.21,
        "words": "Why?",
        "answer": "An answer.",
        "input_tokens": created["usage"]["input_tokens"],
        "output_tokens": created["usage"]["output_tokens"],
        "cached_tokens": created["usage"]["input_tokens_details"]["cached_tokens"],
        "reasoning_tokens": created["usage"]["output_tokens_details"]["reasoning_tokens"],
        "tool_calls": 1,
        "failed_tool_calls": 1,
        "tools": ["f"],
        "waits_for": "client",
        "asks": row["asks"],
        "answers": [],
        "error": None,
        "conversation": None,
        "previous_response_id": None,
        "background": False,
        "metadata": {"team": "search"},
        "version": 1,
    }


WAITING: Final = {"type": "function_call", "name": "f", "call_id": "call_0", "arguments": '{"a": 1}'}
APPROVAL: Final = {"type": "mcp_approval_request", "server_label": "s", "name": "f", "arguments": "{}"}
ANSWER: Final = {"type": "function_call_output", "call_id": "call_0", "output": "1"}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ({"id": "fc_1", **WAITING, "status": "completed"}, [WAITING, ANSWER]),
        ({"id": "fc_1", **WAITING, "status": "completed"}, [{"id": "fc_1", **WAITING, "status": "completed"}, ANSWER]),
        (
            {"id": "mcpr_1", **APPROVAL},
            [
                {"id": "mcpr_1", **APPROVAL},
                {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
            ],
        ),
    ],
    ids=["call", "call with its id", "approval"],
)
async def test_response_waits_no_longer_once_a_sent_history_has_its_answer(
    archive: Archive, asked: Json, answered: list[Json], background: bool
) -> None:
    await archive.save(response(asked, created_at=CREATED), owner=ALICE, base=None, input_items=[user("Why?")])

    async def waits() -> list[str | None]:
        rows = (await archive.listing.page(ALICE, Span(oldest_first=True), 9)).rows
        return [row["waits_for"] for row in await archive.listing.unanswered(ALICE, rows)]

    [before] = await waits()
    assert before in ("client", "approval")
    other = {**answered[0], "arguments": '{"a": 2}'}
    unlike = response(created_at=CREATED + 1)
    await archive.save(unlike, owner=ALICE, base=None, input_items=[user("Why?"), other, answered[1]])
    assert await waits() == [before, None], "a call with the same id is another one"
    later = response(assistant("Because."), created_at=CREATED + 2)
    if background:
        started = {**later, "status": "in_progress", "output": []}
        await archive.save(started, owner=ALICE, base=None, input_items=[user("Why?"), *answered])
    await archive.save(later, owner=ALICE, base=None, input_items=[user("Why?"), *answered])
    assert await waits() == [None, None, None]


async def test_page_of_a_list_is_one_read(archive: Archive, counting: CountingProxy) -> None:
    created = [await save(archive, number) for number in range(7)]
    counting.reads = 0
    first = await archive.listing.page(ALICE, Span(), 3)
    assert counting.reads == 1
    second = await archive.listing.page(ALICE, Span(after=first.next), 9)
    assert [row["id"] for row in [*first.rows, *second.rows]] == [each["id"] for each in reversed(created)]
    assert second.next is None
    assert [row["words"] for row in first.rows] == ["question 6", "question 5", "question 4"]


async def test_list_is_read_from_its_oldest_response(archive: Archive, counting: CountingProxy) -> None:
    created = [await save(archive, number) for number in range(7)]
    counting.reads = 0
    first = await archive.listing.page(ALICE, Span(oldest_first=True), 3)
    assert counting.reads == 1
    rest = await archive.listing.page(ALICE, Span(after=first.next, oldest_first=True), 9)
    assert [row["id"] for row in [*first.rows, *rest.rows]] == [each["id"] for each in created]
    assert rest.next is None
    found = await archive.listing.page(
        ALICE, Span(since=CREATED + 2, until=CREATED + 6, oldest_first=True), 2, lambda row: row["words"][-1] in "235"
    )
    assert [row["id"] for row in found.rows] == [created[2]["id"], created[3]["id"]]


async def test_list_holds_only_the_owners_responses(archive: Archive) -> None:
    theirs = await save(archive, 1, BOB)
    response_id = await save(archive, 2, previous_response_id=theirs["id"])
    assert [row["id"] for row in (await archive.listing.page(ALICE, Span(), 9)).rows] == [response_id["id"]]
    assert [row["id"] for row in (await archive.listing.page(BOB, Span(), 9)).rows] == [theirs["id"]]
    assert await archive.listing.branches(BOB, theirs["id"], 9) == []


async def test_span_bounds_the_list(archive: Archive) -> None:
    created = [await save(archive, number) for number in range(5)]
    page = await archive.listing.page(ALICE, Span(since=CREATED + 1, until=CREATED + 3), 9)
    assert [row["id"] for row in page.rows] == [created[2]["id"], created[1]["id"]]


async def test_filtered_pages_cover_the_list_once(archive: Archive) -> None:
    created = [await save(archive, number) for number in range(9)]
    found: list[str] = []
    span = Span()
    while True:
        page = await archive.listing.page(ALICE, span, 2, lambda row: row["words"][-1] in "13578")
        assert len(page.rows) <= 2
        found += [row["id"] for row in page.rows]
        if page.next is None:
            break
        span = Span(after=page.next)
    assert found == [created[number]["id"] for number in (8, 7, 5, 3, 1)]


async def test_changed_response_has_a_changed_row(archive: Archive) -> None:
    queued = response(status="queued", background=True, completed_at=None, usage=None)
    version = await archive.save(queued, owner=ALICE, base=None, input_items=[user("Long work")])
    [before] = (await archive.listing.page(ALICE, Span(), 9)).rows
    stored = await archive.load(queued["id"])
    assert stored is not None
    ended = queued | {"status": "completed", "output": [assistant("Done")], "completed_at": CREATED + 9}
    await archive.save(ended, owner=ALICE, base=stored.input, input_items=[], version=version)
    [after] = (await archive.listing.page(ALICE, Span(), 9)).rows
    assert (before["status"], after["status"]) == ("queued", "completed")
    assert (before["words"], after["words"]) == ("Long work", "Long work")
    assert after["version"] > before["version"]


async def test_branches_are_the_responses_that_continue_one(archive: Archive) -> None:
    root = await save(archive, 0)
    responses = [await save(archive, number, previous_response_id=root["id"]) for number in (1, 2)]
    assert [row["id"] for row in await archive.listing.branches(ALICE, root["id"], 9)] == [
        each["id"] for each in responses
    ]
    await archive.delete(responses[0]["id"])
    assert [row["id"] for row in await archive.listing.branches(ALICE, root["id"], 9)] == [responses[1]["id"]]


async def test_recorded_requests_are_deleted_with_the_response(archive: Archive, counting: CountingProxy) -> None:
    created = response(assistant("Hi"), previous_response_id="resp_0")
    recording = Recording(requests=[b"one", b"two"])
    await archive.save(created, owner=ALICE, base=None, input_items=[user("Hi")], recording=recording)
    keys = [key for key, _ in await counting.range("cr/", "cr0", limit=9)]
    assert keys == [f"cr/{created['id']}/0000", f"cr/{created['id']}/0001"]
    await archive.delete(created["id"])
    assert [
        key for key, _ in await counting.range("!", "~", limit=99) if not key.startswith(("oa/", "up/", "x/"))
    ] == []


async def test_hostile_metadata_does_not_grow_the_row(archive: Archive, counting: CountingProxy) -> None:
    await save(archive, 0, metadata={f"{number:064}": "\ud83d" * 512 for number in range(16)})
    [(_, record)] = await counting.range("l/", "l0", limit=9)
    assert len(record.value) < 4096
