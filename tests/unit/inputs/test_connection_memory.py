"""The responses that a connection remembers, and the bounds on them."""

from __future__ import annotations

import json
from typing import Any

from llama_stack_responses.inputs.connection_memory import Chains, Link

Json = dict[str, Any]


def item(number: int, size: int = 0) -> Json:
    return {"id": f"item_{number}", "text": "x" * size}


def keep(chains: Chains, number: int, before: Link | None = None, base: str | None = None, size: int = 0) -> Link:
    """Store a response of one input item and one output item, and return its link."""
    response = {"id": f"resp_{number}", "output": [item(2 * number + 1)]}
    chains.keep(response, [item(2 * number, size)], {}, before, base)
    found = chains.find(f"resp_{number}")
    assert found
    return found


def test_chain_has_all_items_in_order() -> None:
    chains = Chains(10_000)
    first = keep(chains, 0, base="stored")
    second = keep(chains, 1, first, "stored")
    fork = keep(chains, 2, first, "stored")
    assert [each["id"] for each in second.unstored] == ["item_0", "item_1", "item_2", "item_3"]
    assert [each["id"] for each in fork.unstored] == ["item_0", "item_1", "item_4", "item_5"]
    assert (second.base, fork.base) == ("stored", "stored")
    assert chains.find("resp_9") is None


def test_tool_outputs_are_remembered_with_items() -> None:
    chains = Chains(10_000)
    told = {"name": "search", "arguments": "{}", "output": "found"}
    chains.keep({"id": "resp_0", "output": [item(1)]}, [], {"item_1": told}, None, None)
    assert (link := chains.find("resp_0"))
    assert link.unstored == [item(1) | {"exchange": told}]


def test_oldest_responses_are_forgotten_first() -> None:
    size = len(json.dumps([item(0, 1_000), item(1)]))
    chains = Chains(2 * size + 10)
    for number in range(3):
        keep(chains, number, size=1_000)
    assert [bool(chains.find(f"resp_{number}")) for number in range(3)] == [False, True, True]


def test_response_counts_with_items_it_builds_on() -> None:
    """A chain that exceeds the bound is forgotten as a whole, even if only a part of it could still be continued."""
    chains = Chains(5_000)
    link: Link | None = None
    for number in range(4):
        link = keep(chains, number, link, size=1_000)
    response: Json = {"id": "resp_4", "output": []}
    chains.keep(response, [item(9, 2_000)], {}, link, None)
    assert [chains.find(f"resp_{number}") for number in range(5)] == [None] * 5


def test_shared_items_count_once() -> None:
    chains = Chains(3_000)
    first = keep(chains, 0, size=2_000)
    for number in range(1, 4):
        keep(chains, number, first)
    assert all(chains.find(f"resp_{number}") for number in range(4))


def test_remembered_responses_are_limited_in_number() -> None:
    chains = Chains(10**9)
    for number in range(300):
        keep(chains, number)
    assert sum(chains.find(f"resp_{number}") is not None for number in range(300)) == 256
