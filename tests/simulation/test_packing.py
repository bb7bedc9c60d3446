"""Seeded schedules of servers that pack idle responses side by side lose nothing, and find bugs that are put in."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from llama_stack_responses.features.cold import conversations, packing
from llama_stack_responses.features.cold.packing import Packing
from llama_stack_responses.features.cold.shares import Shares
from llama_stack_responses.features.cold.unpacking_records import UnpackingRecords
from llama_stack_responses.store.records import Condition, committed
from tests.simulation.packing import simulate_packing

FIXED: Final = range(3)
BUDGET: Final = 60
"""Schedules within which each bug is found."""


def failing(seeds: Iterable[int]) -> str:
    """Return what the first schedule that fails has found, and its seed; empty if none fails."""
    found = (simulate_packing(seed) for seed in seeds)
    return next((f"seed {each.seed}: {each.violations[0]}" for each in found if each.violations), "")


def test_fixed_seeds_lose_nothing() -> None:
    assert failing(FIXED) == ""


@pytest.mark.extended
def test_fresh_seeds_lose_nothing() -> None:
    first = secrets.randbelow(2**40)
    assert failing(range(first, first + 10)) == ""


def _unfenced(patch: pytest.MonkeyPatch) -> None:
    """A chain leaves the store although its responses have changed since they were read."""

    async def unconditional(records: Any, ops: Any, conditions: Sequence[Condition]) -> bool:
        return await committed(records, ops, conditions[-1:])

    patch.setattr(packing, "committed", unconditional)


def _unfenced_items(patch: pytest.MonkeyPatch) -> None:
    """Items leave the store although they or their conversation have changed since they were read."""
    unit = conversations._unit
    patch.setattr(conversations, "_unit", lambda *given: replace(unit(*given), conditions=[]))


def _kept_items(patch: pytest.MonkeyPatch) -> None:
    """The key of packed items stays when their conversation is deleted."""

    async def nothing(*_: Any) -> None:
        pass

    patch.setattr(UnpackingRecords, "forget_items", nothing)


def _everything(patch: pytest.MonkeyPatch) -> None:
    """Every server packs all."""

    async def own(self: Shares) -> Any:
        return self._all

    patch.setattr(Shares, "own", own)


def _never_collected(patch: pytest.MonkeyPatch) -> None:
    """Objects without chains stay."""

    async def nothing(_: Packing) -> None:
        pass

    patch.setattr(Packing, "collect", nothing)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("bug", "known"),
    [(_unfenced, 4), (_unfenced_items, 4), (_kept_items, 2), (_everything, 0), (_never_collected, 0)],
)
def test_bug_that_is_put_in_is_found(bug: Any, known: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed that found it when it was written down is tried first."""
    bug(monkeypatch)
    assert failing([known, *range(BUDGET)])
