"""Registered callbacks are notified of shutdown, and shutdown waits for their blocks to end."""

from __future__ import annotations

from llama_stack_responses.lifecycle.shutdown import ShutdownCoordinator


async def test_shutdown_waits_for_last_registration_to_end() -> None:
    closing, heard = ShutdownCoordinator(), []
    with closing.register(lambda: heard.append("a")):
        with closing.register(lambda: heard.append("b")):
            gone = closing.begin()
            assert gone is not None
            assert sorted(heard) == ["a", "b"]
            assert closing.begin() is None
        assert not gone.done()
    assert gone.done()
    assert len(heard) == 2


async def test_shutdown_without_registrations_needs_no_wait() -> None:
    closing = ShutdownCoordinator()
    assert closing.begin() is None
    assert closing.begun


async def test_late_registration_is_notified_at_once() -> None:
    closing, heard = ShutdownCoordinator(), []
    closing.begin()
    with closing.register(lambda: heard.append("late")):
        assert heard == ["late"]


async def test_cancelled_shutdown_wait_does_not_fail_registration() -> None:
    closing = ShutdownCoordinator()
    with closing.register(lambda: None):
        gone = closing.begin()
        assert gone is not None
        gone.cancel()
