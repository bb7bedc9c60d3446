"""Requests run in order within a lane and concurrently across lanes, within limits."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.wire.websocket.lanes import LaneLimits, Lanes, lane_of
from tests.support.waiting import turns

Json = dict[str, Any]

LIMITS = LaneLimits(concurrency=2, waiting=2, waiting_bytes=100, names=3)


class RunningRequests:
    """Requests that run until released, by lane and name."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.go: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def __call__(self, lane: str | None, event: Json) -> None:
        self.begun.append(event["name"])
        await self.go[event["name"]].wait()
        self.ended.append(event["name"])


async def test_requests_run_in_order_within_lane_and_limits() -> None:
    work = RunningRequests()
    lanes = Lanes(LIMITS, work)
    for lane, name in (("a", "a1"), ("a", "a2"), (None, "n1"), ("c", "c1")):
        lanes.put(lane, {"name": name}, 10, lambda: None)
    await turns(10)
    assert work.begun == ["a1", "n1"]
    with pytest.raises(ApiError) as refused:
        lanes.put("d", {"name": "d1"}, 10, lambda: None)
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    work.go["a1"].set()
    await turns(10)
    assert set(work.begun) == {"a1", "n1", "c1"}
    lanes.put("d", {"name": "d1"}, 10, lambda: None)
    for name in ("n1", "c1", "a2", "d1"):
        work.go[name].set()
    await lanes.finish()
    assert work.ended.index("a1") < work.ended.index("a2")
    assert sorted(work.ended) == ["a1", "a2", "c1", "d1", "n1"]


async def test_queued_requests_are_limited_in_bytes() -> None:
    lanes = Lanes(LIMITS, RunningRequests())
    lanes.put(None, {"name": "1"}, 60, lambda: None)
    with pytest.raises(ApiError):
        lanes.put(None, {"name": "2"}, 41, lambda: None)
    lanes.put(None, {"name": "3"}, 40, lambda: None)
    lanes.abandon()
    await lanes.finish()


async def test_lanes_are_limited_in_number_over_connection() -> None:
    work = RunningRequests()
    lanes = Lanes(LIMITS, work)
    for name in ("a", "b", "c", "a"):
        work.go[name].set()
        lanes.put(name, {"name": name}, 1, lambda: None)
        await lanes.finish()
    with pytest.raises(ApiError) as refused:
        lanes.put("d", {"name": "d"}, 1, lambda: None)
    assert refused.value.code == "websocket_stream_limit_reached"
    lanes.put(None, {"name": "a"}, 1, lambda: None)
    await lanes.finish()


async def test_abandon_cancels_running_and_queued_requests() -> None:
    work = RunningRequests()
    lanes = Lanes(LIMITS, work)
    for lane in ("a", "a", "b"):
        lanes.put(lane, {"name": lane}, 1, lambda: None)
    await turns(10)
    lanes.abandon()
    await lanes.finish()
    assert (work.begun, work.ended) == (["a", "b"], [])


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 256, None])
def test_valid_lane_name_is_accepted(name: str | None) -> None:
    assert lane_of({"stream_id": name}) == name


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 257, 3, ["a"], "a\n"])
def test_invalid_lane_name_is_refused(name: Any) -> None:
    with pytest.raises(ApiError) as refused:
        lane_of({"stream_id": name})
    assert (refused.value.param, refused.value.code) == ("stream_id", "invalid_stream_id")
