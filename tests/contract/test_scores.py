"""Scores of responses, on every backend."""

from __future__ import annotations

from typing import Any, cast

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.page.lists import Lists, restricted_to
from llama_stack_responses.features.page.refused.rows import RefusedRequests
from llama_stack_responses.features.page.search.box import searched
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.layout import SCORES, Entry
from llama_stack_responses.store.records import Records, after_prefix
from llama_stack_responses.store.scores import Score
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED, assistant, response, user

pytestmark = [pytest.mark.needs("many_calls"), pytest.mark.every_store]

ALICE, BOB = Owner("alice"), Owner("bob")


class NoJobs:
    """No response waits in a queue."""

    async def find_many(self, response_ids: Any) -> dict[str, Any]:
        return {}


async def save(archive: Archive, number: int, owner: Owner = ALICE, **fields: Any) -> str:
    made = response(assistant(f"Answer {number}"), created_at=CREATED + number, **fields)
    await archive.save(made, owner=owner, base=None, input_items=[user("Why?")])
    return str(made["id"])


async def stored(archive: Archive, response_id: str) -> tuple[Entry, int]:
    found = await archive.entry_version(response_id)
    assert found
    return found


async def score(archive: Archive, response_id: str, value: float | None, note: str = "") -> None:
    entry, version = await stored(archive, response_id)
    assert await archive.scores.put(entry, version, Score(value, note, "alice", 5))


async def listed(archive: Archive, records: Records, text: str, limit: int = 2) -> list[str]:
    """Return the ids of all that a search finds, read in small pages."""
    lists = Lists(archive, cast("Any", NoJobs()), RefusedRequests(records))
    ids, after = list[str](), None
    while True:
        page = await lists.page(ALICE, restricted_to(searched(text)), after, limit, "desc")
        ids += [row["id"] for row in page["data"]]
        if not (after := page["next"]):
            return ids


async def rows_of_scores(records: Records) -> list[str]:
    return [key for key, _ in await records.range(SCORES, after_prefix(SCORES), limit=100)]


async def test_list_shows_scores_and_filters_by_them(archive: Archive, records: Records) -> None:
    ids = [await save(archive, number, metadata={"n": str(number % 2)}) for number in range(8)]
    await save(archive, 9, BOB)
    for each, value in zip(ids, [1.0, 0.0, 0.7, None, 0.5], strict=False):
        await score(archive, each, value, "A note." if value is None else "")
    for text, numbers in {
        "score:good": [4, 2, 0],
        "score:bad": [1],
        "score:any": [4, 3, 2, 1, 0],
        "score:none": [7, 6, 5],
        "score:>=0.7": [2, 0],
        "score:<0.7 score:>0": [4],
        "score:1": [0],
        "score:good n:0 why": [4, 2, 0],
        "score:any n:1": [3, 1],
        "score:good status:failed": [],
    }.items():
        assert (text, await listed(archive, records, text)) == (text, [ids[number] for number in numbers])
    lists = Lists(archive, cast("Any", NoJobs()), RefusedRequests(records))
    page = await lists.page(ALICE, restricted_to(searched("")), None, 50, "asc")
    assert [row["score"] and (row["score"]["score"], row["score"]["note"]) for row in page["data"]] == [
        *[(1.0, ""), (0.0, ""), (0.7, ""), (None, "A note."), (0.5, "")],
        *[None] * 3,
    ]


async def test_score_is_deleted_with_its_response_and_when_that_expires(records: Records, clock: Clock) -> None:
    archive = Archive(records, clock=clock, retention=100)
    deleted, expired = await save(archive, 0), await save(archive, 1)
    for each in (deleted, expired):
        await score(archive, each, 1)
    await archive.delete(deleted)
    assert [key.rpartition("/")[2] for key in await rows_of_scores(records)] == [expired]
    assert await listed(archive, records, "score:any") == [expired]
    clock.now = CREATED + 1000
    await archive.sweep(archive.horizon(clock.now))
    assert await rows_of_scores(records) == []


async def test_score_is_not_written_for_a_response_that_was_deleted_or_has_changed(
    archive: Archive, records: Records
) -> None:
    response_id = await save(archive, 0)
    entry, version = await stored(archive, response_id)
    assert not await archive.scores.put(entry, version + 1, Score(1, "", "", 5))
    await archive.delete(response_id)
    assert not await archive.scores.put(entry, version, Score(1, "", "", 5))
    assert await rows_of_scores(records) == []


async def test_response_that_is_saved_again_keeps_its_score(archive: Archive) -> None:
    made = response(assistant("x"), created_at=CREATED, status="in_progress")
    await archive.save(made, owner=ALICE, base=None, input_items=[user("Why?")])
    await score(archive, made["id"], 0.7, "So far so good.")
    await archive.save({**made, "status": "completed"}, owner=ALICE, base=None, input_items=[user("Why?")])
    entry, _ = await stored(archive, made["id"])
    assert await archive.scores.find(entry) == Score(0.7, "So far so good.", "alice", 5)
