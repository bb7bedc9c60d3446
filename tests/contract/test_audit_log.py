"""The audit log on every backend."""

from __future__ import annotations

from typing import Any, Final

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.audit_log import Act, AuditLog, machine_actor, user_actor, wanted_entries
from llama_stack_responses.store.records import Records, pages_of
from tests.contract.backends import Clock
from tests.contract.test_archive import ALICE, BOB

type Json = dict[str, Any]

DAY: Final = 86_400
OLGA: Final = Owner("olga", {"keys": ["key_1"]}, "north")


def act(kind: str, object_id: str = "", owner: Owner | None = None) -> Act:
    """Return an act of an operator."""
    return Act(kind, user_actor(OLGA, "192.0.2.1", "", ""), "allowed", object_id, owner)


@pytest.fixture
def log(records: Records) -> AuditLog:
    return AuditLog(records, DAY)


async def test_entries_are_read_newest_first_in_pages(log: AuditLog, clock: Clock) -> None:
    for number in range(5):
        await log.write(act("response.read", f"resp_{number}"))
        clock.now += 1
    found: list[Json] = []
    after = None
    for _ in range(3):
        page, after = await log.page(2, after)
        found += page
    assert after is None
    assert len({each["id"] for each in found}) == 5
    assert [each["effective_at"] for each in found] == sorted((each["effective_at"] for each in found), reverse=True)
    assert {each["resource"]["id"] for each in found} == {f"resp_{number}" for number in range(5)}


async def test_entries_of_one_moment_are_in_the_order_of_their_acts(log: AuditLog) -> None:
    ids = [f"resp_{number}" for number in range(20)]
    for each in ids:
        await log.write(act("response.read", each))
    assert [each["resource"]["id"] async for each in log.entries()] == ids[::-1]


async def test_entries_are_found_by_actor_act_object_owner_and_tenant(log: AuditLog) -> None:
    await log.write(act("response.read", "resp_1", ALICE))
    await log.write(act("response.deleted", "resp_2", BOB))
    await log.write(Act("owner.deleted", machine_actor("root", "host"), "allowed", "", ALICE))
    for wanted, kinds in (
        (wanted_entries(), {"response.read", "response.deleted", "owner.deleted"}),
        (wanted_entries(actor="olga"), {"response.read", "response.deleted"}),
        (wanted_entries(actor="root"), {"owner.deleted"}),
        (wanted_entries(act="response.read"), {"response.read"}),
        (wanted_entries(object_id="resp_2"), {"response.deleted"}),
        (wanted_entries(owner=ALICE), {"response.read", "owner.deleted"}),
        (wanted_entries(tenant="north"), {"response.read", "response.deleted"}),
        (wanted_entries(tenant=""), {"owner.deleted"}),
        (wanted_entries(tenant="south"), set()),
    ):
        assert {each["type"] async for each in log.entries(wanted)} == kinds


async def test_entry_does_not_name_the_owner_of_an_object(log: AuditLog, records: Records) -> None:
    await log.write(act("response.read", "resp_1", Owner("ada-the-owner", {"teams": ["birds"]})))
    [entry] = [each async for each in log.entries()]
    assert "ada-the-owner" not in str(entry)
    assert [key[:3] async for page in pages_of(records, "al/") for key, _ in page] == ["al/"]


async def test_entry_is_kept_for_its_time_only(log: AuditLog, records: Records, clock: Clock) -> None:
    if records.has_own_clock:
        log = AuditLog(records, -1)
    await log.write(act("response.read"))
    clock.now += DAY + 1
    assert [each async for each in log.entries()] == []
