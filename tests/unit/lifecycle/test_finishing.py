"""The wait for running responses before a shutdown."""

import asyncio

import pytest

from llama_stack_responses.lifecycle.finishing import Finishing


@pytest.mark.parametrize(("running", "seconds"), [(set(), 30.0), ({1}, 0.0)])
async def test_shutdown_without_work_or_time_does_not_wait(running: set[object], seconds: float) -> None:
    finishing = Finishing(running, seconds)
    assert finishing.begin() is None
    assert finishing.begun


async def test_wait_ends_with_the_last_response() -> None:
    running = {1, 2}
    finishing = Finishing(running, 3600.0)
    done = finishing.begin()
    assert done is not None
    running.discard(1)
    finishing.check()
    assert not done.done()
    running.discard(2)
    finishing.check()
    finishing.check()
    await done
    assert finishing.begin() is None


async def test_wait_ends_after_the_time_limit() -> None:
    done = Finishing({1}, 0.01).begin()
    assert done is not None
    await asyncio.wait([done])
    assert done.cancelled()


async def test_end_of_a_response_before_the_shutdown_changes_nothing() -> None:
    finishing = Finishing(set(), 1.0)
    finishing.check()
    assert not finishing.begun
