"""The order of a stream's items."""

from __future__ import annotations

from typing import Any

from llama_stack_responses.items.form import stage_events
from llama_stack_responses.stream import events
from llama_stack_responses.stream.events import Event
from llama_stack_responses.stream.item_order import ItemOrder


class Stream:
    """A stream of events with consecutive numbers, and the events that passed the order."""

    def __init__(self) -> None:
        self.order = ItemOrder()
        self.numbered = 0
        self.passed: list[Event] = []

    def put(self, *created: Event) -> list[str]:
        """Put events in, and return those that pass, as output index and last word of the type."""
        for event in created:
            event["sequence_number"] = self.numbered
            self.numbered += 1
        passed = self.order.feed(list(created))
        self.passed += passed
        return [f"{event.get('output_index', '')}{event['type'].rpartition('.')[2]}" for event in passed]

    def numbers(self) -> list[int]:
        return [event["sequence_number"] for event in self.passed]


SEARCH_EVENTS = stage_events("web_search_call", "searching")


def added(index: int) -> Event:
    return events.output_item_added(0, "resp_1", index, {"id": f"ws_{index}", "type": "web_search_call"})


def done(index: int) -> Event:
    return events.output_item_done(0, "resp_1", index, {"id": f"ws_{index}", "type": "web_search_call"})


def searching(index: int) -> Event:
    return SEARCH_EVENTS["searching"](0, f"ws_{index}", index)


def test_items_in_sequence_pass_unchanged() -> None:
    stream = Stream()
    assert stream.put(added(0), searching(0)) == ["0added", "0searching"]
    assert stream.put(done(0), added(1)) == ["0done", "1added"]
    assert stream.put(done(1)) == ["1done"]
    assert (stream.numbers(), stream.order.buffered) == ([0, 1, 2, 3, 4], [])


def test_overlapping_items_pass_in_order_with_ascending_numbers() -> None:
    stream = Stream()
    assert stream.put(added(0), added(1), added(2)) == ["0added"]
    assert stream.put(searching(2), done(2)) == []
    assert stream.put(searching(1), searching(0)) == ["0searching"]
    assert [event["output_index"] for event in stream.order.buffered] == [1, 1, 2, 2, 2]
    assert stream.put(done(0)) == ["0done", "1added", "1searching"]
    assert stream.put(done(1)) == ["1done", "2added", "2searching", "2done"]
    assert stream.put(added(3)) == ["3added"]
    assert stream.numbers() == list(range(10))


def test_message_waits_for_open_call_but_reasoning_not_for_message() -> None:
    stream = Stream()
    message, reasoning = ({"id": kind, "type": kind} for kind in ("message", "reasoning"))
    first = [events.output_item_added(0, "resp_1", 0, message), events.output_item_added(0, "resp_1", 1, reasoning)]
    assert stream.put(*first) == ["0added", "1added"]
    assert stream.put(*(events.output_item_done(0, "resp_1", i, m) for i, m in enumerate((message, reasoning)))) == [
        "0done",
        "1done",
    ]
    assert stream.put(added(2), events.output_item_added(0, "resp_1", 3, message)) == ["2added"]
    assert stream.put(done(2)) == ["2done", "3added"]
    assert stream.numbers() == list(range(7))


def test_event_without_item_releases_held_events() -> None:
    stream = Stream()
    stream.put(added(0), added(1), done(1))
    assert stream.put(events.error(0, "server_error", "It failed.", None)) == ["1added", "1done", "error"]
    assert (stream.numbers(), stream.order.buffered) == ([0, 1, 2, 3], [])


def text(index: int, delta: str, **more: Any) -> Event:
    return events.output_text_delta(0, f"msg_{index}", index, 0, delta, []) | more


def test_held_deltas_of_one_part_are_joined_and_later_numbers_have_no_gap() -> None:
    stream = Stream()
    stream.put(added(0), text(1, "a"), text(1, "b"), text(1, "c", content_index=1), text(2, "x"), text(1, "d"))
    assert [event["delta"] for event in stream.order.buffered] == ["ab", "c", "d", "x"]
    assert stream.put(done(0), added(3)) == ["0done", "1delta", "1delta", "1delta", "2delta", "3added"]
    assert stream.put(done(3)) == ["3done"]
    assert stream.order.joined == 1
    assert stream.numbers() == list(range(8))


def test_joined_deltas_are_bounded_and_keep_their_logprobs() -> None:
    stream = Stream()
    stream.put(added(0), *(text(1, "x" * 1_000, logprobs=[number]) for number in range(8)))
    assert [len(event["delta"]) for event in stream.order.buffered] == [5_000, 3_000]
    assert [number for event in stream.order.buffered for number in event["logprobs"]] == list(range(8))


def test_sent_event_is_not_changed_by_joining() -> None:
    stream = Stream()
    first = text(1, "a")
    stream.put(added(0), first, text(1, "b"))
    assert first["delta"] == "a"


class CountingIndex(int):
    """An output index that counts comparisons."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        CountingIndex.compared += 1
        return int(self) < int(other)


def test_release_of_held_items_compares_each_with_few_others() -> None:
    stream = Stream()
    stream.put(added(0), *(text(CountingIndex(number), "x") for number in range(1, 1_001)))
    CountingIndex.compared = 0
    assert len(stream.put(done(0))) == 1_001
    assert CountingIndex.compared < 30_000


def test_resumed_order_continues_numbers() -> None:
    first = Stream()
    first.put(added(0), added(1), searching(0), done(1))
    second = Stream()
    second.order.resume(0, first.order.buffered, len(first.passed))
    second.numbered = first.numbered
    assert second.put(added(2), done(2)) == []
    assert second.put(done(0)) == ["0done", "1added", "1done", "2added", "2done"]
    assert first.numbers() + second.numbers() == list(range(7))
