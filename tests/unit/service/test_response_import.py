"""Import of another server's responses into the archive, in one run or in several."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.core.shapes import DEFAULT_LIMITS
from llama_stack_responses.service.conversation_import import ImportReport
from llama_stack_responses.service.response_import import FoundResponse, import_responses
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords

type Json = dict[str, Any]


def found(
    number: int, continues: int | None = None, owner: Owner = ANONYMOUS, created_at: int = 1000, **body: Any
) -> FoundResponse:
    """Return the response of one turn as OGX stores it: with only its own input."""
    part = {"type": "message", "role": "assistant", "id": f"msg_{number}", "status": "completed"}
    return FoundResponse(
        id=named(number),
        owner=owner,
        created_at=created_at,
        body={
            "status": "completed",
            "model": "m",
            "output": [{**part, "content": [{"type": "output_text", "text": f"answer {number}", "annotations": []}]}],
            **body,
        },
        input=[{"type": "message", "role": "user", "content": f"question {number}"}],
        continues=None if continues is None else named(continues),
    )


def named(number: int) -> str:
    return f"resp_00000000-0000-4000-8000-{number:012}"


class Table:
    """The other server's responses."""

    def __init__(self, *rows: FoundResponse) -> None:
        self.rows = list(rows)

    async def pages(self) -> AsyncIterator[Sequence[FoundResponse]]:
        yield self.rows

    async def find(self, response_id: str) -> FoundResponse | None:
        return next((row for row in self.rows if row.id == response_id), None)


async def run_import(archive: Archive, table: Table, oldest: float | None = None) -> ImportReport:
    report = ImportReport(lambda _: None)
    await import_responses(archive, table, DEFAULT_LIMITS, report, oldest)
    return report


async def history(archive: Archive, number: int) -> list[str]:
    """Return the texts of the history after a response."""
    stored = await archive.load(named(number))
    assert stored
    return [item["content"][0]["text"] for item in await archive.history(stored.history)]


@pytest.fixture
def archive() -> Archive:
    return Archive(MemoryRecords(10_000, 2**24), retention=None)


WHOLE = ["question 1", "answer 1", "question 2", "answer 2", "question 3", "answer 3"]


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1)])
async def test_imported_chain_has_whole_history_in_either_order(archive: Archive, order: tuple[int, ...]) -> None:
    rows = {1: found(1), 2: found(2, 1), 3: found(3, 2)}
    assert (await run_import(archive, Table(*(rows[each] for each in order)))).responses == 3
    assert await history(archive, 3) == WHOLE


async def test_imported_chain_with_expired_beginning_has_whole_history(archive: Archive) -> None:
    report = await run_import(
        archive, Table(found(1, created_at=10), found(2, 1, created_at=20), found(3, 2)), oldest=100
    )
    assert (report.responses, report.expired) == (1, 2)
    assert await history(archive, 3) == WHOLE
    assert await archive.load(named(1)) is None


async def test_imported_chain_over_several_partitions_has_whole_history() -> None:
    archive = Archive(PartitionedRecords([MemoryRecords() for _ in range(8)]), retention=None)
    first = replace(found(1), id=f"resp_p005{1:024x}")
    second = replace(found(2), continues=first.id)
    assert (await run_import(archive, Table(first, second, found(3, 2)))).responses == 3
    assert await history(archive, 3) == WHOLE


async def test_imported_chain_with_cycle_is_read_once(archive: Archive) -> None:
    assert (await run_import(archive, Table(found(1, 2), found(2, 1)))).responses == 2
    assert await history(archive, 1) == ["question 2", "answer 2", "question 1", "answer 1"]


async def test_second_import_adds_new_responses_but_no_deleted_ones(archive: Archive) -> None:
    table = Table(found(1), found(2, 1))
    await run_import(archive, table)
    assert await archive.delete(named(1))
    table.rows.append(found(3, 2))
    report = await run_import(archive, table)
    assert (report.responses, report.there) == (1, 2)
    assert await archive.load(named(1)) is None
    assert await history(archive, 3) == WHOLE


async def test_unfinished_response_is_left_for_next_import(archive: Archive) -> None:
    report = await run_import(archive, Table(found(1, status="in_progress")))
    assert (report.responses, report.unfinished) == (0, 1)
    assert (await run_import(archive, Table(found(1)))).responses == 1


async def test_imported_history_is_copied_for_owner_of_response(archive: Archive) -> None:
    alice, bob = Owner("alice"), Owner("bob")
    await run_import(archive, Table(found(1, owner=alice), found(2, 1, owner=bob)))
    assert await history(archive, 2) == WHOLE[:4]
    assert [item_id async for item_id, _ in archive.find_items(bob, ["msg_1"])] == ["msg_1"]


async def test_malformed_parts_of_import_are_left_out_and_reported(archive: Archive) -> None:
    broken = found(2, output=["nothing", {"type": "from_the_future", "id": "x_1"}], tools=[{"type": "no such"}, 5])
    report = await run_import(archive, Table(found(1, model=None), broken))
    assert (report.responses, report.left_out) == (1, [named(1), "an item without an id", "x_1"])
    stored = await archive.load(named(2))
    assert stored
    assert (stored.response["output"], stored.response["tools"]) == ([], [])


async def test_long_import_reports_progress(archive: Archive) -> None:
    lines: list[str] = []
    report = ImportReport(lines.append)
    await import_responses(archive, Table(*(found(each) for each in range(501))), DEFAULT_LIMITS, report, None)
    assert lines == ["Read 501: 0 conversations, 501 responses new"]
