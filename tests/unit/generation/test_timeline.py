"""What is recorded of a response: its rounds, tool calls, chat requests and the times of its events."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.generation import timeline as timing
from llama_stack_responses.generation.activity import Activity, Running
from llama_stack_responses.generation.event_times import EventTimes, times_of
from llama_stack_responses.generation.timeline import Earlier, Timeline
from llama_stack_responses.store import codec
from llama_stack_responses.stream.usage import Usage


class FakeRound:
    """A round or a tool call that took ten milliseconds."""

    def __init__(self, usage: Usage | None = None, first_chunk: float | None = None) -> None:
        self.usage = usage
        self.first_chunk = first_chunk
        self.seconds = 0.01


def round_of(usage: Usage | None = None, first_chunk: float | None = None) -> Any:
    return FakeRound(usage, first_chunk)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(f"{EventTimes.__module__}.perf_counter", clock)
    return clock


def test_round_is_recorded_with_its_first_chunk_and_tokens() -> None:
    timeline = Timeline()
    with timeline.round(round_of(Usage(5, 7, 1), 0.004), "answer"):
        pass
    [[start, first, end, *rest]] = timeline.marks()["rounds"]
    assert (first - start, end - start) == (4, 10)
    assert rest == [5, 7, 1, "answer"]
    assert (timeline.counts.rounds, timeline.counts.output_tokens, timeline.counts.first_tokens_ms) == (1, 7, 4.0)


def test_failed_tool_call_is_recorded() -> None:
    timeline = Timeline()
    with pytest.raises(ValueError, match="x"), timeline.tool(round_of(), {"id": "mcp_1", "type": "mcp_call"}, "find"):
        raise ValueError("x")
    [[start, end, *rest]] = timeline.marks()["tools"]
    assert end - start == 10
    assert rest == ["mcp_1", "mcp_call", "find", True]
    assert (timeline.counts.tool_calls, timeline.counts.failed_tool_calls) == (1, 1)


def test_recording_continues_after_another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "perf_counter", lambda: 100.0)
    first, second = Timeline(), Timeline()
    first.resume(2.0, None)
    with first.round(round_of(Usage(1, 1)), "answer"):
        pass
    second.resume(9.0, codec.decode(codec.encode(first.progress())), Earlier(2.0, 2, 1, 0))
    marks = second.marks()
    assert (marks["queue_ms"], marks["tries"], len(marks["rounds"])) == (2000, 2, 2)
    [answered, lost] = marks["rounds"]
    assert lost == (answered[2], None, 9000, None, None, None, "interrupted")


def test_time_of_try_without_progress_does_not_count_as_queue_wait() -> None:
    timeline = Timeline()
    timeline.resume(9.0, None, Earlier(2.0, 1, 0, 0))
    marks = timeline.marks()
    assert (marks["queue_ms"], marks["tries"]) == (2000, 1)
    assert marks["rounds"] == [(2000, None, 9000, None, None, None, "interrupted")]


async def test_stored_requests_are_not_stored_again() -> None:
    timeline = Timeline(keeps_requests=True)
    timeline.resume(9.0, None, Earlier(2.0, 2, 3, 0))
    await timeline.requested({"messages": []}, "answer")
    first, [taken] = timeline.take_requests()
    assert (first, codec.decode(taken)["round"], codec.decode(taken)["attempt"]) == (3, 3, 2)
    await timeline.requested({"messages": []}, "answer")
    recording = timeline.recording()
    assert (recording.stored, len(recording.requests), recording.recorded) == (4, 1, 5)


def test_times_of_events_continue_after_another_worker(clock: Clock) -> None:
    first = EventTimes(1.0)
    first.note(3)
    second = EventTimes(7.0, first.copied())
    second.note(5)
    assert times(second, 6) == [1000, 1000, 1000, 7000, 7000, 7000]


@pytest.mark.parametrize(("kept", "expected"), [(2, [1000, 1000, 7000, 7000]), (4, [1000, 1000, 1000, 2000])])
def test_events_of_a_try_that_was_cut_off_have_its_beginning(clock: Clock, kept: int, expected: list[int]) -> None:
    first = EventTimes(1.0)
    first.note(3)
    second = EventTimes(7.0, first.copied())
    second.keep(kept, 2000)
    second.note(5)
    assert times(second, 4) == expected


def test_response_that_waited_for_a_month_has_times(clock: Clock) -> None:
    event_times = EventTimes(31 * 86_400.0)
    event_times.note(1)
    assert event_times.copied() == [1, 2**31 - 1]


async def test_requests_are_recorded_within_bounds() -> None:
    timeline = Timeline(keeps_requests=True)
    for text in ("short", "x" * 30_000, *["y" * 19_999] * 500):
        await timeline.requested({"messages": [{"role": "user", "content": text}] * 5}, "answer")
    records = [codec.decode(each) for each in timeline.recording().requests]
    assert records[0]["request"]["messages"][0]["content"] == "short"
    assert not records[0]["truncated"]
    assert len(records[1]["request"]["messages"][0]["content"]) < 1100
    assert records[1]["truncated"]
    assert len(records) == 256


async def test_requests_over_the_limit_are_left_out() -> None:
    timeline = Timeline(keeps_requests=True)
    big = {"messages": [{"role": "user", "content": "y" * 20_000}] * 500}
    await timeline.requested(big, "answer")
    [record] = [codec.decode(each) for each in timeline.recording().requests]
    assert (record["request"], record["truncated"]) == (None, True)


async def test_limit_on_recorded_requests_counts_visible_text() -> None:
    """Stored, such text takes a hundredth of its size."""
    timeline = Timeline(keeps_requests=True)
    for _ in range(10):
        await timeline.requested({"messages": [{"role": "user", "content": "y" * 19_999}] * 100}, "answer")
    shown = [codec.decode(each)["request"] is not None for each in timeline.recording().requests]
    assert shown == [True] * 4 + [False] * 6


async def test_requests_are_not_recorded_unless_wanted() -> None:
    timeline = Timeline()
    await timeline.requested({"messages": []}, "answer")
    assert timeline.recording().requests == []


def times(event_times: EventTimes, count: int) -> list[int]:
    time_of = times_of(event_times.ticks())
    return [time_of(number) for number in range(count)]


def test_pace_has_the_time_of_each_event(clock: Clock) -> None:
    event_times = EventTimes(1.0)
    for now, count in ((0.0, 2), (0.01, 3), (0.1, 5), (0.5, 6)):
        clock.now = now
        event_times.note(count)
    clock.now = 0.6
    assert times(event_times, 8) == [1000, 1000, 1010, 1100, 1100, 1500, 1600, 1600]


def test_events_before_a_pause_do_not_count_as_ready_after_it(clock: Clock) -> None:
    event_times = EventTimes()
    for now, count in ((0.0, 1), (0.01, 2), (0.02, 3), (0.03, 4), (3.0, 5), (3.01, 6)):
        clock.now = now
        event_times.note(count)
    clock.now = 4.0
    # Times that come close together are one.
    assert times(event_times, 7) == [0, 30, 30, 30, 3000, 3010, 4000]


def test_events_before_a_pause_are_part_of_the_noted_times(clock: Clock) -> None:
    event_times = EventTimes()
    for now, count in ((0.0, 1), (0.01, 2)):
        clock.now = now
        event_times.note(count)
    assert event_times.copied() == [1, 0, 1, 10]


def test_pace_of_a_long_stream_takes_bounded_space(clock: Clock) -> None:
    event_times = EventTimes()
    for count in range(1, 100_001):
        clock.now = count * 0.05
        event_times.note(count)
    assert len(event_times.ticks()) <= 2 * 2000 + 2
    found = times(event_times, 100_000)
    assert all(abs(at - 50 * (number + 1)) < 5000 for number, at in enumerate(found))
    assert found == sorted(found)


def test_counts_of_users_are_apart_and_bounded() -> None:
    activity = Activity()
    ada, bob = activity.of(Owner("ada")), activity.of(Owner("bob"))
    ada.tool_ended(failed=False)
    assert (activity.of(Owner("ada")).tool_calls, bob.tool_calls) == (1, 0)
    for number in range(2000):
        activity.of(Owner(str(number)))
    assert activity.of(Owner("ada")).tool_calls == 0


async def test_cancelled_response_is_counted_as_cancelled() -> None:
    timeline: Any = Timeline()

    class Assembler:
        numbered = 7
        response: ClassVar = {"id": "resp_1"}

    assembler: Any = Assembler()
    running = Running(assembler, [], stored=True, streamed=True, owner=timeline.owner, end=lambda _: None)
    with pytest.raises(asyncio.CancelledError), timeline.response(running):
        raise asyncio.CancelledError
    assert (timeline.counts.requests, timeline.counts.cancelled, timeline.counts.events) == (1, 1, 7)


def test_first_token_counts_as_soon_as_it_has_come_and_once() -> None:
    activity = Activity()
    timeline: Any = Timeline(activity)

    class Assembler:
        numbered = 7
        used = Usage()
        response: ClassVar = {"id": "resp_1"}

    assembler: Any = Assembler()
    running = Running(assembler, [], stored=True, streamed=True, owner=timeline.owner, end=lambda _: None)
    current = round_of(Usage(1, 1))
    with timeline.response(running):
        with timeline.round(current, "answer"):
            assert activity.now(timeline.owner)["first_token_ms"] == {"count": 0, "sum": 0, "last": None}
            current.first_chunk = 0.004
            counted = {"count": 1, "sum": 4.0, "last": 4.0}
            assert activity.now(timeline.owner)["first_token_ms"] == counted
        assert activity.now(timeline.owner)["first_token_ms"] == counted
