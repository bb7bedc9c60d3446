"""Whoever listens hears each ring, also one between two waits, and looks by themselves where others cannot ring."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from llama_stack_responses.jobs import notifier as bell
from llama_stack_responses.jobs.notifier import NAMES, Bell

AGES: Final = 3600.0


@pytest.fixture
def rings() -> Bell:
    return Bell()


async def test_a_ring_before_the_wait_ends_it_and_only_it(rings: Bell) -> None:
    with rings.listen("a") as ear:
        rings.ring("a")
        rings.ring("a")
        assert await ear.wait(AGES)
        assert not await ear.wait(0.0)


async def test_a_ring_in_the_wait_ends_it_for_all_that_listen(rings: Bell) -> None:
    with rings.listen("a") as one, rings.listen("a") as other, rings.listen("b") as stranger:
        waits = [asyncio.create_task(ear.wait(AGES)) for ear in (one, other)]
        await asyncio.sleep(0)
        rings.ring("a")
        assert await asyncio.gather(*waits) == [True, True]
        assert not await stranger.wait(0.0)
        rings.ring_all()
        assert [await ear.wait(AGES) for ear in (one, other, stranger)] == [True] * 3


async def test_who_is_told_looks_seldom(rings: Bell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell, "SELDOM", 0.0)
    with rings.listen("a") as ear:
        rings.ring_from_outside("a")
        assert await ear.wait(AGES)
        assert not await ear.wait(AGES)
        monkeypatch.setattr(bell, "SELDOM", AGES)
        assert not await ear.wait(AGES, 0.0)
        rings.cut_off(["a"])
        assert await ear.wait(AGES)
        assert not await ear.wait(0.0)


async def test_it_is_known_what_is_listened_for(rings: Bell) -> None:
    with rings.listen(NAMES) as changes:
        assert await changes.wait(AGES)
        with rings.listen("a"):
            assert await changes.wait(AGES)
            with rings.listen("a"), rings.listen("b"):
                assert rings.names == {"a", "b"}
                assert await changes.wait(AGES)
            assert await changes.wait(AGES)
            assert rings.names == {"a"}
        assert await changes.wait(AGES)
        assert rings.names == set()
        rings.ring("nobody")
