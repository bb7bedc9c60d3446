"""The lists of all owners as one, on every backend."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store import all_lists
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.list_row_pages import Span
from llama_stack_responses.store.list_rows import Row
from tests.contract.conversations import CREATED, assistant, response, user
from tests.contract.counting_proxy import CountingProxy

pytestmark = pytest.mark.needs("many_calls")

BUCKET_SECONDS = 65_536


async def filled(archive: Archive, owners: list[Owner], count: int, seconds: int) -> list[tuple[str, Owner]]:
    """Save responses of these owners in turn by chance, so many seconds apart; return them newest first."""
    chance, saved = Random(1), list[tuple[str, Owner]]()
    for number in range(count):
        made, owner = response(assistant("a"), created_at=CREATED + number * seconds), chance.choice(owners)
        await archive.save(made, owner=owner, base=None, input_items=[user(f"question {number}")])
        saved.append((made["id"], owner))
    return saved[::-1]


async def read(
    archive: Archive, tenant: str, span: Span, limit: int, wanted: Callable[[Row], bool] | None = None
) -> list[tuple[str, Owner]]:
    """Return the responses of all pages."""
    found, pages = list[tuple[str, Owner]](), 0
    while True:
        got = await archive.all_lists.page(tenant, span, limit, wanted)
        assert len(got.page.rows) <= limit
        found += [(row["id"], got.owners[row["id"]]) for row in got.page.rows]
        if got.page.next is None:
            return found
        pages += 1
        assert pages < 200
        span = Span(span.since, span.until, got.page.next)


@pytest.mark.parametrize(("count", "seconds", "limit"), [(60, 1, 7), (24, BUCKET_SECONDS // 4, 5), (24, 1, 50)])
async def test_pages_have_each_response_once_in_the_order_of_creation(
    archive: Archive, count: int, seconds: int, limit: int
) -> None:
    owners = [Owner(f"user {number}", tenant="north") for number in range(20)]
    saved = await filled(archive, owners, count, seconds)
    assert await read(archive, "north", Span(), limit) == saved
    start, end = count // 4, count // 2
    some = Span(CREATED + start * seconds, CREATED + end * seconds)
    assert await read(archive, "north", some, limit) == saved[count - end : count - start]
    odd = [each for number, each in enumerate(saved[::-1]) if number % 2][::-1]
    assert await read(archive, "north", Span(), limit, lambda row: int(row["words"].split()[1]) % 2 == 1) == odd


async def test_other_tenants_are_left_out_and_hide_nothing(archive: Archive) -> None:
    owners = [Owner("ada", tenant="north"), Owner("ada", tenant="south"), Owner("bob", tenant="south")]
    saved = await filled(archive, owners, 40, 1)
    for tenant in ("north", "south", ""):
        assert await read(archive, tenant, Span(), 3) == [each for each in saved if each[1].tenant == tenant]


async def test_filter_that_ends_early_loses_no_owner(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page reads one block of each owner, and most blocks have nothing that is wanted."""
    monkeypatch.setattr(all_lists, "_LEAST_ROWS", 2)
    monkeypatch.setattr(all_lists, "_ROWS", 2)
    saved = await filled(archive, [Owner("ada"), Owner("bob"), Owner("cy")], 30, 1)
    oldest = {f"question {number}" for number in range(4)}
    assert await read(archive, "", Span(), 2, lambda row: row["words"] in oldest) == saved[-4:]


async def test_page_ends_within_a_bucket_of_time(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page reads a few rows of each owner, although no row is wanted before the oldest."""
    monkeypatch.setattr(all_lists, "SCAN_SECONDS", 0.0)
    monkeypatch.setattr(all_lists, "_ROWS", 8)
    saved = await filled(archive, [Owner(f"user {number}") for number in range(4)], 60, 1)
    seen = list[str]()

    def is_oldest(row: Row) -> bool:
        seen.append(row["id"])
        return bool(row["id"] == saved[-1][0])

    first = await archive.all_lists.page("", Span(), 5, is_oldest)
    assert first.page.next is not None
    assert len(seen) <= 4 * all_lists._LEAST_ROWS
    assert await read(archive, "", Span(), 5, is_oldest) == saved[-1:]


async def test_first_page_reads_each_owner_of_the_last_hours_once(archive: Archive, counting: CountingProxy) -> None:
    await filled(archive, [Owner(f"user {number}") for number in range(8)], 64, 1)
    await archive.all_lists.page("", Span(), 5)
    counting.reads = 0
    assert len((await archive.all_lists.page("", Span(), 5)).page.rows) == 5
    assert counting.reads <= 8 + 3


async def test_owner_with_many_responses_has_no_others_read_again(
    archive: Archive, counting: CountingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_lists, "_ROWS", 8)
    await filled(archive, [Owner(f"user {number}") for number in range(8)], 20, 1)
    await filled(archive, [Owner("busy")], 40, 1)
    await archive.all_lists.page("", Span(), 5)
    counting.reads = 0
    found = await archive.all_lists.page("", Span(), 5, lambda _: False)
    assert found.page.next is None
    assert counting.reads <= 9 + 40 // 8 + 5
