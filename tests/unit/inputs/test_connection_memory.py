"""The responses that a connection remembers, and the bounds on them."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.inputs.connection_memory import ConnectionMemory, RememberedTurn

Json = dict[str, Any]

ANNA = Owner("anna")


def chains_of(limit: int, per_user: int = 10**9) -> ConnectionMemory:
    return ConnectionMemory(limit, Admission(Quota("histories", 10**9, per_user)).reserve(ANNA))


def item(number: int, size: int = 0) -> Json:
    return {"id": f"item_{number}", "text": "x" * size}


async def keep(
    memory: ConnectionMemory, number: int, before: RememberedTurn | None = None, base: str | None = None, size: int = 0
) -> RememberedTurn:
    """Store a response of one input item and one output item, and return its link."""
    response = {"id": f"resp_{number}", "output": [item(2 * number + 1)]}
    await memory.remember(response, [item(2 * number, size)], {}, before, base)
    found = memory.find(f"resp_{number}")
    assert found
    return found


async def test_chain_has_all_items_in_order() -> None:
    memory = chains_of(10_000)
    first = await keep(memory, 0, base="stored")
    second = await keep(memory, 1, first, "stored")
    fork = await keep(memory, 2, first, "stored")
    assert [each["id"] for each in second.unstored] == ["item_0", "item_1", "item_2", "item_3"]
    assert [each["id"] for each in fork.unstored] == ["item_0", "item_1", "item_4", "item_5"]
    assert (second.base, fork.base) == ("stored", "stored")
    assert memory.find("resp_9") is None


async def test_tool_outputs_are_remembered_with_items() -> None:
    memory = chains_of(10_000)
    output = {"name": "search", "arguments": "{}", "output": "found"}
    await memory.remember({"id": "resp_0", "output": [item(1)]}, [], {"item_1": output}, None, None)
    assert (link := memory.find("resp_0"))
    assert link.unstored == [item(1) | {"exchange": output}]


async def test_oldest_responses_are_forgotten_first() -> None:
    memory = chains_of(4_500)
    for number in range(3):
        await keep(memory, number, size=1_000)
    assert [bool(memory.find(f"resp_{number}")) for number in range(3)] == [False, True, True]


async def test_response_counts_with_items_it_builds_on() -> None:
    """A chain that exceeds the bound is forgotten as a whole, even if only a part of it could still be continued."""
    memory = chains_of(9_000)
    link: RememberedTurn | None = None
    for number in range(4):
        link = await keep(memory, number, link, size=1_000)
    response: Json = {"id": "resp_4", "output": []}
    await memory.remember(response, [item(9, 2_000)], {}, link, None)
    assert [memory.find(f"resp_{number}") for number in range(5)] == [None] * 5


async def test_shared_items_count_once() -> None:
    memory = chains_of(7_000)
    first = await keep(memory, 0, size=2_000)
    for number in range(1, 4):
        await keep(memory, number, first)
    assert all(memory.find(f"resp_{number}") for number in range(4))


async def test_remembered_responses_are_limited_in_number() -> None:
    memory = chains_of(10**9)
    for number in range(300):
        await keep(memory, number)
    assert sum(memory.find(f"resp_{number}") is not None for number in range(300)) == 256


async def test_values_count_with_their_size_in_memory() -> None:
    memory = chains_of(100_000)
    await memory.remember({"id": "resp_0", "output": []}, [{"id": "item_0", "many": [[]] * 1_000}], {}, None, None)
    assert memory.find("resp_0") is None


async def test_connections_of_one_user_share_a_limit() -> None:
    histories = Admission(Quota("histories", 10**9, 300_000))
    first, second = (ConnectionMemory(10**9, histories.reserve(ANNA)) for _ in range(2))
    await keep(first, 0, size=100_000)
    await keep(second, 1, size=100_000)
    await first.check([item(9)])
    link = await keep(first, 2, size=50_000)
    with pytest.raises(ApiError, match="You have too many histories open") as refused:
        await second.check([item(9)])
    assert refused.value.status == 429
    await ConnectionMemory(10**9, histories.reserve(Owner("ben"))).check([item(9)])
    # A longer history takes the place of older ones of its connection only.
    await keep(first, 3, link, size=100_000)
    assert [bool(first.find(f"resp_{number}")) for number in (0, 2, 3)] == [False, True, True]
    assert second.find("resp_1")
    first.forget("resp_3")
    assert histories.held < 200_000
    await second.check([item(9)])
    with pytest.raises(ApiError, match="You have too many histories open"):
        await second.check([item(9, 200_000)])


async def test_closed_connection_holds_nothing() -> None:
    histories = Admission(Quota("histories", 10**9, 10**9))
    memory = ConnectionMemory(10**9, histories.reserve(ANNA))
    link = await keep(memory, 0, size=10_000)
    assert histories.held > 10_000
    memory.close()
    assert histories.held == 0
    await memory.remember({"id": "resp_1", "output": [item(3)]}, [], {}, link, None)
    assert (memory.find("resp_1"), histories.held) == (None, 0)
