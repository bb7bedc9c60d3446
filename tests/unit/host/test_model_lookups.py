"""Lookups of models that the host does not list."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from llama_stack_responses.host.model_lookups import ModelLookups


class Table:
    """A routing table that counts its lookups.

    Args:
        registered: the names that its registry has in memory.
        visible: those that the user may see.
    """

    def __init__(self, registered: set[str], visible: set[str]) -> None:
        self.registered, self.visible, self.asked = registered, visible, 0
        self.dist_registry = SimpleNamespace(
            get_cached=lambda kind, name: "found" if kind == "model" and name in self.registered else None
        )

    async def get_object_by_identifier(self, kind: str, name: str) -> Any:
        """Return the object, if the user may see it."""
        self.asked += 1
        return self.dist_registry.get_cached(kind, name) if name in self.visible else None


async def test_unlisted_model_is_looked_up_once_in_five_seconds() -> None:
    now = 0.0
    table, lookups = Table(set(), set()), ModelLookups(lambda: now)
    for now in (0.0, 1.0, 4.9):
        assert await lookups.find(table, "model", "local/m") is None
    assert table.asked == 1
    now = 5.0
    assert await lookups.find(table, "model", "local/m") is None
    assert table.asked == 2


async def test_model_that_is_registered_here_is_found_at_once() -> None:
    table, lookups = Table(set(), {"local/m"}), ModelLookups()
    assert await lookups.find(table, "model", "local/m") is None
    table.registered.add("local/m")
    assert await lookups.find(table, "model", "local/m") == "found"


async def test_model_that_one_user_may_not_see_is_found_for_another() -> None:
    table, lookups = Table({"local/m"}, set()), ModelLookups()
    assert await lookups.find(table, "model", "local/m") is None
    table.visible.add("local/m")
    assert await lookups.find(table, "model", "local/m") == "found"


async def test_registry_without_memory_is_asked_each_time() -> None:
    table, lookups = Table(set(), set()), ModelLookups()
    table.dist_registry = SimpleNamespace()
    for _ in range(2):
        assert await lookups.find(table, "model", "local/m") is None
    assert table.asked == 2
