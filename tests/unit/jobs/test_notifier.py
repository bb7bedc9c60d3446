"""A subscription receives every notification, also one between two waits, and polls where remote ones may be lost."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from llama_stack_responses.jobs.notifier import NAMES, Notifier
from tests.support.memory import cycles_left

AGES: Final = 3600.0


@pytest.fixture
def notifier() -> Notifier:
    return Notifier()


async def test_notification_before_wait_ends_one_wait(notifier: Notifier) -> None:
    with notifier.subscribe("a") as subscription:
        notifier.notify("a")
        notifier.notify("a")
        assert await subscription.wait(AGES)
        assert not await subscription.wait(0.0)


async def test_notification_during_wait_wakes_all_subscribers_of_name(notifier: Notifier) -> None:
    with notifier.subscribe("a") as one, notifier.subscribe("a") as other, notifier.subscribe("b") as stranger:
        waits = [asyncio.create_task(subscription.wait(AGES)) for subscription in (one, other)]
        await asyncio.sleep(0)
        notifier.notify("a")
        assert await asyncio.gather(*waits) == [True, True]
        assert not await stranger.wait(0.0)
        notifier.notify_all()
        assert [await subscription.wait(AGES) for subscription in (one, other, stranger)] == [True] * 3


async def test_timeout_counts_from_last_activity(notifier: Notifier) -> None:
    loop, asked = asyncio.get_running_loop(), list[float]()

    def active_at() -> float:
        asked.append(loop.time())
        return asked[-1] if len(asked) < 3 else 0.0

    with notifier.subscribe("a") as subscription:
        assert not await subscription.wait(0.01, active_at=active_at)
    assert len(asked) == 3
    assert asked[2] - asked[0] >= 0.02


async def test_wait_leaves_no_reference_cycle(notifier: Notifier) -> None:
    with notifier.subscribe("a") as subscription:

        async def wait() -> None:
            assert not await subscription.wait(0.0)
            asyncio.get_running_loop().call_soon(notifier.notify, "a")
            assert await subscription.wait(AGES)

        assert await cycles_left(wait) == {}


@pytest.mark.parametrize("fallback_poll", [0.0, AGES])
async def test_wait_for_remote_notification_falls_back_to_polling(fallback_poll: float) -> None:
    notifier = Notifier(fallback_poll)
    with notifier.subscribe("a") as subscription:
        notifier.notify_remote("a")
        assert await subscription.wait(AGES)
        if not fallback_poll:
            assert not await subscription.wait(AGES)
        assert not await subscription.wait(AGES, 0.0)
        notifier.mark_lost(["a"])
        assert await subscription.wait(AGES)
        assert not await subscription.wait(0.0)


async def test_names_lists_subscribed_names_and_notifies_on_change(notifier: Notifier) -> None:
    with notifier.subscribe(NAMES) as changes:
        assert await changes.wait(AGES)
        with notifier.subscribe("a"):
            assert await changes.wait(AGES)
            with notifier.subscribe("a"), notifier.subscribe("b"):
                assert notifier.names == {"a", "b"}
                assert await changes.wait(AGES)
            assert await changes.wait(AGES)
            assert notifier.names == {"a"}
        assert await changes.wait(AGES)
        assert notifier.names == set()
        notifier.notify("unused")
