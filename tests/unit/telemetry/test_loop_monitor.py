"""Holds of the event loop are reported, except time in which the process could not run."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.telemetry import loop_monitor
from llama_stack_responses.telemetry.loop_monitor import BlockedPeriod, EventLoopMonitor, blocked_seconds
from tests.support import snippets as documentation
from tests.support.exported_telemetry import ExportedTelemetry
from tests.support.snippet_programs import BLOCKED_LOOP
from tests.support.waiting import until, wait_until

THRESHOLD = 0.1
PLACE = r"\S+:\d+ \S+"


class MonitorReports:
    def __init__(self) -> None:
        self.delays: list[float] = []
        self.holds: list[float] = []


@contextmanager
def monitored(threshold: float = THRESHOLD, report_after: float = 600.0) -> Iterator[MonitorReports]:
    reported = MonitorReports()
    monitor = EventLoopMonitor(threshold, reported.delays.append, reported.holds.append, report_after)
    monitor.start()
    try:
        yield reported
    finally:
        monitor.stop()


def documented() -> re.Pattern[str]:
    """Return the form of the documented line: any numbers, functions and number of callers."""
    shown = documentation.blocks()[BLOCKED_LOOP].text.strip()
    beginning, _, rest = shown.partition(", running ")
    places, _, samples = rest.rpartition(" (")
    assert re.fullmatch(f"{PLACE}( < {PLACE})* < ...", places)
    before, after = (re.sub(r"\d[\d\\.]*", r"[\\d.]+", re.escape(each)) for each in (beginning, f" ({samples}"))
    return re.compile(f"{before}, (running|waiting) {PLACE}( < {PLACE})*{after}")


def blocks() -> None:
    time.sleep(1.0)


def computes() -> None:
    began = time.thread_time()
    while time.thread_time() - began < 1.0:
        pass


def computes_without_a_pause() -> None:
    began = time.thread_time()
    while time.thread_time() - began < 1.0:
        sum(range(5_000_000))


async def hold_until(measured: Callable[[], bool], hold: Callable[[], None]) -> None:
    """Hold the loop until this is measured. On a busy machine, the monitor cannot judge a hold that it hardly saw."""
    async with asyncio.timeout(60):
        while not measured():
            asyncio.get_running_loop().call_soon(hold)
            await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    ("hold", "doing"), [(blocks, "waiting"), (computes, "running"), (computes_without_a_pause, "running")]
)
async def test_hold_is_logged_with_function_and_duration(
    hold: Callable[[], None], doing: str, caplog: pytest.LogCaptureFixture
) -> None:
    with monitored() as reported:
        await until(lambda: len(reported.delays) > 2)
        await hold_until(lambda: any(each > 0.5 for each in reported.holds), hold)
        await until(lambda: hold.__name__ in caplog.text)
    line, *_ = [each for each in caplog.messages if hold.__name__ in each]
    assert line.startswith("event loop was blocked for ")
    assert f", {doing} unit/telemetry/test_loop_monitor.py:" in line
    assert str(THRESHOLD) not in line.partition("running")[2]  # no values
    assert documented().fullmatch(line)


async def test_endless_hold_is_logged_while_it_lasts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monitored(report_after=0.5) as reported:
        await until(lambda: len(reported.delays) > 2)
        wait_until(lambda: "blocked for more than" in caplog.text)  # this blocks the loop itself
        await until(lambda: bool(reported.holds))
    assert caplog.text.count("blocked for more than") == 1
    assert "wait_until" in caplog.text


async def test_idle_loop_is_not_reported_as_held() -> None:
    with monitored(1.0) as reported:
        await until(lambda: len(reported.delays) > 3)
    assert reported.holds == []


@pytest.mark.parametrize(
    ("late", "ran", "queued", "alive", "held"),
    [
        (3.0, 3.0, 0.0, 3.0, 3.0),
        (3.0, 3.0, 0.0, 0.0, 3.0),
        (3.0, 0.0, 0.0, 3.0, 3.0),
        (3.0, 0.0, 0.0, 0.1, 0.1),
        (3.0, 0.2, 2.8, 3.0, 0.2),
        (3.0, 0.1, 2.9, 0.0, 0.1),
    ],
    ids=["computing", "computing in C", "blocked", "the process stopped", "no processor", "no processor for anybody"],
)
def test_only_time_that_loop_itself_took_counts(
    late: float, ran: float, queued: float, alive: float, held: float
) -> None:
    assert blocked_seconds(late, ran, queued, alive) == pytest.approx(held)


PAUSED = """
import asyncio, logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
from llama_stack_responses.telemetry.loop_monitor import EventLoopMonitor

async def main():
    delays = []
    monitor = EventLoopMonitor(0.5, delays.append, lambda held: print("HELD", held, flush=True))
    monitor.start()
    print("begun", flush=True)
    while not any(each > 2 for each in await beats(delays)):
        pass
    print("went on", flush=True)
    monitor.stop()

async def beats(delays):
    await asyncio.sleep(0.1)
    return delays

# A delay without a cause in the code is counted too.
real = EventLoopMonitor._beat
def beat(self):
    import time
    late = time.monotonic() - self._last - self._interval
    real(self)
    if late > 2:
        self._on_delay(late)
EventLoopMonitor._beat = beat
asyncio.run(main())
"""


def test_stopped_process_is_not_reported_as_hold() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", PAUSED], stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGSTOP)
        time.sleep(3)
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=240)
    assert output == "went on\n"


def test_frames_shared_by_most_samples_are_named() -> None:
    outer: loop_monitor.Stack = [("a.py main", 1), ("b.py work", 7)]
    samples = [[*outer, (f"c.py f{number}", number)] for number in range(5)]
    assert loop_monitor._common_frames(samples) == ("b.py:7 work < a.py:1 main", "5 of 5")
    assert loop_monitor._common_frames([*samples, *[[*outer, ("c.py f0", number)] for number in range(5)]]) == (
        "c.py:0 f0 < b.py:7 work < a.py:1 main",
        "6 of 10",
    )
    assert loop_monitor._common_frames([[("d.py deep", 1)] * 50]) == (" < ".join(["d.py:1 deep"] * 8), "1 of 1")
    assert loop_monitor._common_frames([]) == ("", "0 of 0")


def test_hold_log_lines_are_limited_and_dropped_ones_counted(caplog: pytest.LogCaptureFixture) -> None:
    lines = loop_monitor._Lines()
    for _ in range(50):
        lines.log(BlockedPeriod(0.2, ran=True))
    assert len(caplog.messages) == 20
    lines._last -= 3.0
    lines.log(BlockedPeriod(0.25, ran=False, stack="a.py:1 f", fraction="1 of 2"))
    assert caplog.messages[-1] == (
        "event loop was blocked for 0.250 s, waiting a.py:1 f (in 1 of 2 samples) (30 earlier ones not logged)"
    )
    assert {each.levelno for each in caplog.records} == {logging.WARNING}


async def test_delays_and_holds_are_measured() -> None:
    watched = ExportedTelemetry()
    monitor = watched.telemetry.monitor_loop(0.02)
    found: dict[str, float] = {}

    def measured() -> bool:
        for name, [(_, _, total)] in watched.points().items():
            found[name] = total
        return found.get("llama_stack_responses.event_loop.delay", 0) > 0.5

    assert not measured()
    assert found == {"llama_stack_responses.event_loop.holds": 0}, "exported before the first hold"
    await hold_until(measured, blocks)
    assert found["llama_stack_responses.event_loop.holds"] >= 1
    monitor.stop()
    monitor.stop()
    await until(lambda: "event-loop-monitor" not in {each.name for each in threading.enumerate()})


@pytest.mark.parametrize("seconds", [-1, 0.001, 100])
def test_invalid_threshold_is_refused(seconds: float) -> None:
    assert ResponsesConfig(loop_hold_seconds=0).loop_hold_seconds == 0
    with pytest.raises(ValueError, match=r"0\.01 to 60 seconds"):
        ResponsesConfig(loop_hold_seconds=seconds)
