"""Registered callbacks are notified of shutdown, and shutdown waits for their blocks to end."""

from __future__ import annotations

from llama_stack_responses.lifecycle.shutdown import ShutdownCoordinator


async def test_shutdown_waits_for_last_registration_to_end() -> None:
    closing, received = ShutdownCoordinator(), []
    with closing.register(lambda: received.append("a")):
        with closing.register(lambda: received.append("b")):
            gone = closing.begin()
            assert gone is not None
            assert sorted(received) == ["a", "b"]
            assert closing.begin() is None
        assert not gone.done()
    assert gone.done()
    assert len(received) == 2


async def test_shutdown_without_registrations_needs_no_wait() -> None:
    closing = ShutdownCoordinator()
    assert closing.begin() is None
    assert closing.begun


async def test_late_registration_is_notified_at_once() -> None:
    closing, received = ShutdownCoordinator(), []
    closing.begin()
    with closing.register(lambda: received.append("late")):
        assert received == ["late"]


async def test_cancelled_shutdown_wait_does_not_fail_registration() -> None:
    closing = ShutdownCoordinator()
    with closing.register(lambda: None):
        gone = closing.begin()
        assert gone is not None
        gone.cancel()
