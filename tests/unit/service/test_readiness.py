"""Readiness: what is reported, how often parts are checked, and what is logged."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.intervals import DEFAULT, Intervals
from llama_stack_responses.service.readiness import Readiness, ReadinessCheck, ReadinessReport, State

LONG = replace(DEFAULT, ready_cache_seconds=3600.0)
NO_CACHE = replace(DEFAULT, ready_cache_seconds=0.0)


def saying(answer: bool | None) -> ReadinessCheck:
    async def check() -> bool | None:
        return answer

    return check


def raising(error: Exception) -> ReadinessCheck:
    async def check() -> bool | None:
        raise error

    return check


def readiness(*, stopping: Callable[[], bool] = lambda: False, **checks: ReadinessCheck) -> Readiness:
    return Readiness(checks, stopping, NO_CACHE)


async def test_server_whose_parts_answer_is_ready() -> None:
    report = await readiness(store=saying(True), worker=saying(None)).report()
    assert report == ReadinessReport("ready", {"store": "ok", "worker": "unknown"})
    assert report.ready


@pytest.mark.parametrize("check", [saying(False), raising(ApiError(503, "Away.")), raising(RuntimeError("defect"))])
async def test_server_with_a_part_that_does_not_answer_is_not_ready(check: ReadinessCheck) -> None:
    report = await readiness(store=saying(True), worker=check).report()
    assert report == ReadinessReport("not_ready", {"store": "ok", "worker": "unavailable"})
    assert not report.ready


async def test_part_that_hangs_is_unavailable_after_the_time_limit() -> None:
    async def hangs() -> bool | None:
        await asyncio.Event().wait()
        return True

    report = await Readiness({"store": hangs}, lambda: False, replace(NO_CACHE, ready_seconds=0.01)).report()
    assert report.parts == {"store": "unavailable"}


async def test_server_that_shuts_down_is_stopping_without_a_check() -> None:
    report = await readiness(stopping=lambda: True, store=raising(AssertionError())).report()
    assert report == ReadinessReport("stopping", {})


@pytest.mark.parametrize(("intervals", "checked"), [(LONG, 1), (NO_CACHE, 2)])
async def test_requests_share_one_check_until_its_report_expires(intervals: Intervals, checked: int) -> None:
    count = 0
    go = asyncio.Event()

    async def counts() -> bool | None:
        nonlocal count
        count += 1
        await go.wait()
        return True

    probe = Readiness({"store": counts}, lambda: False, intervals)
    tasks = [asyncio.create_task(probe.report()) for _ in range(50)]
    await asyncio.sleep(0)
    tasks[0].cancel()  # the first client disconnects; the check goes on
    go.set()
    reports = await asyncio.gather(*tasks[1:])
    assert all(report.ready for report in reports)
    assert count == 1
    await probe.report()
    assert count == checked


async def test_only_changes_of_a_state_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    states: list[State] = ["ok", "unavailable", "unavailable", "ok", "ok"]
    answers = iter(states)

    async def next_one() -> bool | None:
        return next(answers) == "ok"

    probe = readiness(store=next_one)
    with caplog.at_level(logging.INFO):
        for _ in states:
            await probe.report()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "readiness: store is unavailable"),
        ("INFO", "readiness: store is ok"),
    ]
