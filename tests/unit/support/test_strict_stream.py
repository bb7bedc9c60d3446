"""The stream checker accepts valid streams and refuses every modified one."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.strict import WireError, check_stream, rebuild
from tests.unit.support.streams import (
    added,
    call,
    done,
    message,
    numbered,
    reasoning,
    response,
    search,
    shell,
    stream,
)

type Event = dict[str, Any]


def interleaved() -> list[Event]:
    """Return two calls with interleaved events after a message: an item is added while another is open."""
    first, second = call(1), call(2)
    mixed = [first[0], second[0], first[1], second[1], first[2], second[2], first[3], first[4], second[3], second[4]]
    events = stream(message(0), mixed)
    events[-1]["response"]["output"] = [message(0)[-1]["item"], first[-1]["item"], second[-1]["item"]]
    return events


def failed(code: str = "server_error") -> Event:
    """Return the terminal event of a stream that broke after its first item."""
    output = [message()[-1]["item"]]
    return {"type": "response.failed", "response": response("failed", output, error={"code": code, "message": "x"})}


def of(events: list[Event], name: str) -> Event:
    """Return the last event of this type."""
    return next(event for event in reversed(events) if event["type"] == f"response.{name}")


@pytest.mark.parametrize(
    "events",
    [
        stream(),
        stream(message(), call(1)),
        stream(reasoning(0), message(1, logprobs=True), call(2), search(3), shell(4)),
        stream(message(), end=failed("context_length_exceeded")),
        stream(message(), [{"type": "error", "code": None, "message": "x", "param": None}], end=failed()),
        numbered(
            {"type": "response.created", "response": response("queued")},
            {"type": "response.queued", "response": response("queued")},
            *stream()[1:],
        ),
        numbered(
            {"type": "response.created", "response": response("queued")},
            {"type": "response.failed", "response": response("cancelled")},
        ),
    ],
)
def test_valid_streams_are_accepted(events: list[Event]) -> None:
    assert check_stream(events) == events[-1]["response"]
    assert rebuild(events) == events[-1]["response"]


def test_unfinished_stream_is_rebuilt() -> None:
    events = stream(message())
    annotated = next(position for position, event in enumerate(events) if "annotation" in event)
    [item] = rebuild(events[: annotated + 1])["output"]
    assert item["status"] == "in_progress"
    assert item["content"][0]["text"] == "Hello world"
    assert item["content"][0]["annotations"] == [events[annotated]["annotation"]]
    assert rebuild(stream(call())[:4])["output"][0]["arguments"] == '{"a"'
    assert rebuild(stream(shell())[:5])["output"][0]["action"]["commands"] == ["ls -l"]
    assert rebuild(stream(reasoning())[:5])["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]


def drop(name: str) -> Callable[[list[Event]], list[Event]]:
    """Remove the last event of this type."""
    return lambda events: numbered(*[event for event in events if event is not of(events, name)])


def put(name: str, /, **changes: Any) -> Callable[[list[Event]], list[Event]]:
    """Change the last event of this type."""

    def apply(events: list[Event]) -> list[Event]:
        of(events, name).update(changes)
        return events

    return apply


def repeat(name: str) -> Callable[[list[Event]], list[Event]]:
    """Repeat the last event of this type."""

    def apply(events: list[Event]) -> list[Event]:
        place = next(index for index, event in enumerate(events) if event is of(events, name))
        return numbered(*events[: place + 1], events[place], *events[place + 1 :])

    return apply


def first(name: str) -> Callable[[list[Event]], list[Event]]:
    """Move the last event of this type to the first place after the opening ones."""

    def apply(events: list[Event]) -> list[Event]:
        rest = [event for event in events if event is not of(events, name)]
        return numbered(*rest[:2], of(events, name), *rest[2:])

    return apply


def item(name: str, **changes: Any) -> Callable[[list[Event]], list[Event]]:
    """Change the item in the last event of this type."""

    def apply(events: list[Event]) -> list[Event]:
        of(events, name)["item"].update(changes)
        return events

    return apply


def final(**changes: Any) -> Callable[[list[Event]], list[Event]]:
    """Change the final response."""

    def apply(events: list[Event]) -> list[Event]:
        events[-1]["response"].update(changes)
        return events

    return apply


def other_type(events: list[Event]) -> list[Event]:
    """Let a message end with a part of another type."""
    of(events, "content_part.done")["part"] = {"type": "refusal", "refusal": "Hello world"}
    return events


def unnumbered_gap(events: list[Event]) -> list[Event]:
    """Remove an event without renumbering."""
    return [*events[:3], *events[4:]]


@pytest.mark.parametrize(
    ("bend", "says"),
    [
        (unnumbered_gap, "event 3 has number 4"),
        (lambda events: events[1:], "event 0 has number 1"),
        (drop("created"), "the stream opens with"),
        (drop("in_progress"), "the stream opens with"),
        (first("in_progress"), "the stream opens with"),
        (repeat("in_progress"), "the stream opens with"),
        (drop("completed"), "0 terminal events"),
        (repeat("completed"), "2 terminal events"),
        (first("completed"), "comes after response.completed"),
        (lambda events: events[:0], "0 terminal events"),
        (drop("output_item.done"), "item 0 (message) is never done"),
        (repeat("output_item.done"), "the item is done already"),
        (repeat("output_item.added"), "output_index: streamed 1, now 0"),
        (put("output_item.added", output_index=1), "output_index: streamed 0, now 1"),
        (put("output_item.done", output_index=1), "no item 1 was added"),
        (drop("content_part.added"), "no content part 0 was added"),
        (repeat("content_part.added"), "content_index: streamed 1, now 0"),
        (drop("content_part.done"), "the item is done, but not its content"),
        (repeat("content_part.done"), "content part 0 is done already"),
        (drop("output_text.done"), "the part is done before its text"),
        (repeat("output_text.done"), "its text is done already"),
        (drop("output_text.delta"), "the done text: streamed 'Hello', now 'Hello world'"),
        (repeat("output_text.delta"), "the done text"),
        (first("output_text.delta"), "no item 0 was added"),
        (put("output_text.done", text="Hello"), "the done text"),
        (put("output_text.delta", item_id="msg_9"), "item_id"),
        (put("output_text.delta", content_index=1), "no content part 1 was added"),
        (put("output_text.annotation.added", annotation_index=1), "annotation_index"),
        (drop("output_text.annotation.added"), "the part's annotations"),
        (other_type, "the part's type"),
        (item("output_item.done", id="msg_9"), "the item's id"),
        (item("output_item.done", content=[]), "the item's content"),
        (item("output_item.done", status="in_progress"), "the item is done, but 'in_progress'"),
        (item("output_item.added", status="completed"), "the item is added, but not in progress"),
        (final(output=[]), "the final response's output"),
        (final(output=[message()[-1]["item"] | {"content": []}]), "the final response's output"),
        (final(id="resp_2"), "constant fields"),
        (final(store=False), "constant fields"),
        (final(temperature=0.5), "constant fields"),
        (put("in_progress", response=response("in_progress", temperature=0.5)), "constant fields"),
        (final(status="failed"), "response.completed has status 'failed'"),
        (final(error={"code": "server_error", "message": "x"}), "status completed, error"),
        (final(completed_at=None), "completed_at None"),
        (final(incomplete_details={"reason": "max_output_tokens"}), "incomplete_details"),
        (put("created", response=response(output=[message()[-1]["item"]])), "response.created: output"),
        (put("in_progress", response=response("queued")), "response.in_progress has status queued"),
        (put("output_text.delta", extra=1), "has no such key"),
        (put("output_text.done", logprobs=[{"token": "a", "logprob": -1.0}]), "the done logprobs"),
    ],
)
def test_modified_message_streams_are_refused(bend: Callable[[list[Event]], list[Event]], says: str) -> None:
    with pytest.raises(WireError) as raised:
        check_stream(bend(stream(message())))
    assert says in str(raised.value)


def test_field_that_was_adapted_may_change_at_the_end_alone() -> None:
    changed = final(temperature=0.5)(stream(message()))
    assert check_stream(changed, adapted={"temperature"})["temperature"] == 0.5
    with pytest.raises(WireError, match="constant fields"):
        check_stream(changed, adapted={"top_p"})
    early = put("in_progress", response=response("in_progress", temperature=0.5))(changed)
    with pytest.raises(WireError, match="constant fields"):
        check_stream(early, adapted={"temperature"})


def test_items_of_a_cut_attempt_are_left_out_only_of_a_response_that_was_taken_over() -> None:
    first, second = message(0), message(1)
    events = stream(first, second)
    last = final(output=[second[-1]["item"]])(events)
    assert check_stream(last, taken_over=True)["output"] == [second[-1]["item"]]
    with pytest.raises(WireError, match="output"):
        check_stream(last)
    with pytest.raises(WireError, match="leaves out its last item"):
        check_stream(final(output=[first[-1]["item"]])(events), taken_over=True)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        (drop("function_call_arguments.done")(stream(call())), "not its arguments"),
        (drop("function_call_arguments.delta")(stream(call())), "the done arguments"),
        (put("function_call_arguments.done", arguments="{}")(stream(call())), "the done arguments"),
        (put("function_call_arguments.done", name="g")(stream(call())), "the name of the done arguments"),
        (stream([call()[0], call()[-1]]), "the item is done without its function_call events"),
        (item("output_item.done", arguments="{}")(stream(call())), "the item's arguments"),
        (item("output_item.done", call_id="call_9")(stream(call())), "the item's call_id"),
        (item("output_item.added", arguments="{")(stream(call())), "added with its arguments"),
        (item("output_item.added", id="fc_9")(stream(call(0), call(1))), "item_id"),
        (stream(call(0), [added(1, call(0)[0]["item"])]), "another item has this id"),
        (stream([call()[0]], [{**message()[2], "item_id": "fc_0"}]), "no content part 0 was added"),
        (stream([call()[0], {**message()[1], "item_id": "fc_0"}]), "a function_call has no output_text"),
        (stream([message()[0], {**call()[1], "item_id": "msg_0"}]), "the item's type"),
        (repeat("web_search_call.completed")(stream(search())), "'completed' comes after 'completed'"),
        (first("web_search_call.searching")(stream(search())), "no item 0"),
        (item("output_item.done", status="failed")(stream(search())), "the item's status"),
        (drop("shell_call_command.delta")(stream(shell())), "the done command"),
        (drop("shell_call_command.done")(stream(shell())), "not its commands"),
        (drop("reasoning_summary_part.done")(stream(reasoning())), "not its summary"),
        (drop("reasoning_text.done")(stream(reasoning())), "the part is done before its text"),
        (put("reasoning_summary_text.delta", summary_index=1)(stream(reasoning())), "no summary part 1"),
        (stream([done(0, message()[-1]["item"])]), "no item 0 was added"),
        (interleaved(), "an item is added while ['function_call'] is open"),
        (stream([{"type": "error", "code": None, "message": "x", "param": None}]), "after an error event comes"),
        (stream([{"type": "error", "code": None, "message": "x", "param": None}], message(), end=failed()), "error"),
    ],
)
def test_modified_item_streams_are_refused(events: list[Event], says: str) -> None:
    with pytest.raises(WireError) as raised:
        check_stream(events)
    assert says in str(raised.value)


def test_wrong_order_of_final_output_is_refused() -> None:
    events = stream(message(), call(1))
    events[-1]["response"]["output"].reverse()
    with pytest.raises(WireError, match="the final response's output"):
        check_stream(events)


def test_error_names_event_and_position() -> None:
    with pytest.raises(WireError, match=r"event 6 \(response.output_text.annotation.added\): annotation_index"):
        check_stream(put("output_text.annotation.added", annotation_index=3)(stream(message())))
