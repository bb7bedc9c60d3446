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
    held: list[float] = []
    monitor = EventLoopMonitor(0.05, beats.append, held.append, report_after)
    monitor.start()
    try:
        await until(lambda: len(beats) > 2)
        # On a busy machine, the monitor cannot judge a hold that it hardly saw.
        async with asyncio.timeout(60):
            while not (any(each > SECONDS / 2 for each in held) and words in caplog.text):
                asyncio.get_running_loop().call_soon(blocks)
                await asyncio.sleep(SECONDS)
    finally:
        monitor.stop()
    # The host wraps its lines.
    with log.open("a") as file:
        for message in (each for each in caplog.messages if words in each):
            file.write(textwrap.fill(f"WARNING  {message}", 60, subsequent_indent=" " * 9) + "\n")
    [longest, *_] = holds.read()
    assert longest.seconds >= min(SECONDS / 2, report_after)
    assert ".py:" in longest.by
    with pytest.raises(AssertionError):
        holds.assert_none_above(0.05)


def test_hold_without_samples_hides_no_later_one(tmp_path: Path) -> None:
    log = tmp_path / "stack.log"
    log.touch()
    holds = LoopHolds(log)
    begin = "WARNING event loop was blocked for"
    log.write_text(
        f"{begin} 0.1 s, waiting, no sample was taken\n{begin} 0.4 s, running a.py:1 f (in 3 of 4 samples)\n"
    )
    assert [(each.seconds, each.by) for each in holds.read()] == [
        (0.4, "running a.py:1 f (in 3 of 4 samples)"),
        (0.1, "waiting, no sample was taken WARNING "),
    ]


def test_other_lines_are_no_holds(tmp_path: Path) -> None:
    log = tmp_path / "stack.log"
    log.touch()
    holds = LoopHolds(log)
    log.write_text("response store unavailable, retrying\n")
    holds.assert_none_above(0.0)


@pytest.mark.parametrize(
    ("doing", "samples", "of_machine"),
    [
        ("waiting lib/threading.py:355 Condition.wait < lib/threading.py:997 Thread.start", 10, True),
        ("waiting lib/threading.py:355 Condition.wait < lib/threading.py:997 Thread.start", 2, False),
        ("running lib/threading.py:355 Condition.wait < lib/threading.py:997 Thread.start", 10, False),
        ("waiting core/answers.py:20 encode", 10, False),
    ],
    ids=["new thread without a processor", "interpreter lock held", "computing", "waiting for something else"],
)
def test_wait_for_a_new_thread_is_no_hold(tmp_path: Path, doing: str, samples: int, of_machine: bool) -> None:
    log = tmp_path / "stack.log"
    log.touch()
    holds = LoopHolds(log)
    log.write_text(f"WARNING event loop was blocked for 0.561 s, {doing} (in {samples} of {samples} samples)\n")
    if of_machine:
        holds.assert_none_above(0.2)
    else:
        with pytest.raises(AssertionError, match=r"0\.561"):
            holds.assert_none_above(0.2)
