"""Waiting jobs take turns by owner and weight."""

from __future__ import annotations

from llama_stack_responses.jobs.fair_order import FairOrder
from llama_stack_responses.store.records import Record


def orders(order: FairOrder, owner: str, weight: float, count: int) -> list[tuple[str, str]]:
    """Return the orders of so many jobs of an owner, each with its owner."""
    known: dict[str, Record] = {}
    made = []
    for _ in range(count):
        position, puts = order.assign(owner, known, 1_000_000.0, weight)
        known |= {put.key: Record(put.value, 1) for put in puts}
        made.append((position, owner))
    return made


def test_jobs_of_a_heavier_owner_come_as_often_as_the_weight_says() -> None:
    order = FairOrder()
    waiting = sorted(orders(order, "heavy", 2.0, 20) + orders(order, "light", 1.0, 20))
    first = [owner for _, owner in waiting[:15]]
    assert (first.count("heavy"), first.count("light")) == (10, 5)
