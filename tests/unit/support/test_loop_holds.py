"""The tests' reader of a stack's log finds every line of the event loop's monitor."""

from __future__ import annotations

import asyncio
import textwrap
import time
from pathlib import Path

import pytest

from llama_stack_responses.telemetry.loop_monitor import EventLoopMonitor
from tests.support.loop_holds import LoopHolds
from tests.support.waiting import until

SECONDS = 0.4


def blocks() -> None:
    time.sleep(SECONDS)


@pytest.mark.parametrize(("report_after", "words"), [(10.0, "was blocked for"), (0.1, "blocked for more than")])
async def test_hold_that_the_monitor_logs_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, report_after: float, words: str
) -> None:
    log = tmp_path / "stack.log"
    log.write_text("an earlier line\n")
    holds = LoopHolds(log)
    beats: list[float] = []
    monitor = EventLoopMonitor(0.05, beats.append, beats.append, report_after)
    monitor.start()
    try:
        await until(lambda: len(beats) > 2)
        asyncio.get_running_loop().call_soon(blocks)
        await until(lambda: any(words in message for message in caplog.messages))
    finally:
        monitor.stop()
    # The host wraps its lines.
    [message] = [each for each in caplog.messages if words in each]
    with log.open("a") as file:
        file.write(textwrap.fill(f"WARNING  {message}", 60, subsequent_indent=" " * 9))
    [longest, *_] = holds.read()
    assert longest.seconds >= min(SECONDS / 2, report_after)
    assert ".py:" in longest.by
    with pytest.raises(AssertionError):
        holds.assert_none_above(0.05)


def test_other_lines_are_no_holds(tmp_path: Path) -> None:
    log = tmp_path / "stack.log"
    log.touch()
    holds = LoopHolds(log)
    log.write_text("response store unavailable, retrying\n")
    holds.assert_none_above(0.0)
