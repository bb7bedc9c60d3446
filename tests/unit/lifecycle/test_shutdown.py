"""Everybody hears that the server ends, and is waited for."""

from __future__ import annotations

from llama_stack_responses.lifecycle.shutdown import Closing


async def test_the_last_guest_is_waited_for() -> None:
    closing, heard = Closing(), []
    with closing.guest(lambda: heard.append("a")):
        with closing.guest(lambda: heard.append("b")):
            gone = closing.begin()
            assert gone is not None
            assert sorted(heard) == ["a", "b"]
            assert closing.begin() is None
        assert not gone.done()
    assert gone.done()
    assert len(heard) == 2


async def test_nobody_is_there() -> None:
    closing = Closing()
    assert closing.begin() is None
    assert closing.begun


async def test_who_comes_late_is_told_at_once() -> None:
    closing, heard = Closing(), []
    closing.begin()
    with closing.guest(lambda: heard.append("late")):
        assert heard == ["late"]


async def test_who_waited_no_longer_does_not_mind() -> None:
    closing = Closing()
    with closing.guest(lambda: None):
        gone = closing.begin()
        assert gone is not None
        gone.cancel()
