"""The responses that a connection remembers, and the bounds on them."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.inputs.connection_memory import Chains, Link

Json = dict[str, Any]

ANNA = Owner("anna")


def chains_of(limit: int, per_user: int = 10**9) -> Chains:
    return Chains(limit, Admission(Quota("histories", 10**9, per_user)).lease(ANNA))


def item(number: int, size: int = 0) -> Json:
    return {"id": f"item_{number}", "text": "x" * size}


async def keep(chains: Chains, number: int, before: Link | None = None, base: str | None = None, size: int = 0) -> Link:
    """Store a response of one input item and one output item, and return its link."""
    response = {"id": f"resp_{number}", "output": [item(2 * number + 1)]}
    await chains.keep(response, [item(2 * number, size)], {}, before, base)
    found = chains.find(f"resp_{number}")
    assert found
    return found


async def test_chain_has_all_items_in_order() -> None:
    chains = chains_of(10_000)
    first = await keep(chains, 0, base="stored")
    second = await keep(chains, 1, first, "stored")
    fork = await keep(chains, 2, first, "stored")
    assert [each["id"] for each in second.unstored] == ["item_0", "item_1", "item_2", "item_3"]
    assert [each["id"] for each in fork.unstored] == ["item_0", "item_1", "item_4", "item_5"]
    assert (second.base, fork.base) == ("stored", "stored")
    assert chains.find("resp_9") is None


async def test_tool_outputs_are_remembered_with_items() -> None:
    chains = chains_of(10_000)
    told = {"name": "search", "arguments": "{}", "output": "found"}
    await chains.keep({"id": "resp_0", "output": [item(1)]}, [], {"item_1": told}, None, None)
    assert (link := chains.find("resp_0"))
    assert link.unstored == [item(1) | {"exchange": told}]


async def test_oldest_responses_are_forgotten_first() -> None:
    chains = chains_of(4_500)
    for number in range(3):
        await keep(chains, number, size=1_000)
    assert [bool(chains.find(f"resp_{number}")) for number in range(3)] == [False, True, True]


async def test_response_counts_with_items_it_builds_on() -> None:
    """A chain that exceeds the bound is forgotten as a whole, even if only a part of it could still be continued."""
    chains = chains_of(9_000)
    link: Link | None = None
    for number in range(4):
        link = await keep(chains, number, link, size=1_000)
    response: Json = {"id": "resp_4", "output": []}
    await chains.keep(response, [item(9, 2_000)], {}, link, None)
    assert [chains.find(f"resp_{number}") for number in range(5)] == [None] * 5


async def test_shared_items_count_once() -> None:
    chains = chains_of(7_000)
    first = await keep(chains, 0, size=2_000)
    for number in range(1, 4):
        await keep(chains, number, first)
    assert all(chains.find(f"resp_{number}") for number in range(4))


async def test_remembered_responses_are_limited_in_number() -> None:
    chains = chains_of(10**9)
    for number in range(300):
        await keep(chains, number)
    assert sum(chains.find(f"resp_{number}") is not None for number in range(300)) == 256


async def test_values_count_with_their_size_in_memory() -> None:
    chains = chains_of(100_000)
    await chains.keep({"id": "resp_0", "output": []}, [{"id": "item_0", "many": [[]] * 1_000}], {}, None, None)
    assert chains.find("resp_0") is None


async def test_connections_of_one_user_share_a_limit() -> None:
    histories = Admission(Quota("histories", 10**9, 300_000))
    first, second = (Chains(10**9, histories.lease(ANNA)) for _ in range(2))
    await keep(first, 0, size=100_000)
    await keep(second, 1, size=100_000)
    await first.check([item(9)])
    link = await keep(first, 2, size=50_000)
    with pytest.raises(ApiError, match="You have too many histories open") as refused:
        await second.check([item(9)])
    assert refused.value.status == 429
    await Chains(10**9, histories.lease(Owner("ben"))).check([item(9)])
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
    chains = Chains(10**9, histories.lease(ANNA))
    link = await keep(chains, 0, size=10_000)
    assert histories.held > 10_000
    chains.close()
    assert histories.held == 0
    await chains.keep({"id": "resp_1", "output": [item(3)]}, [], {}, link, None)
    assert (chains.find("resp_1"), histories.held) == (None, 0)
