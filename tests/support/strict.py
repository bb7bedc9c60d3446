"""Strict validation of the wire format: what a client that relies on every guarantee would accept.

    frames = read_sse(answer.iter_bytes())          # `event:` lines, JSON, [DONE]
    response = check_stream(frames.events)          # the types, the protocol, and that the events describe the response
    validate_response(client.responses.retrieve(response["id"]).to_dict())

All functions raise WireError, an AssertionError with the violation and its place.
"""

from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Final

from llama_stack_responses.core.statuses import UNFINISHED
from tests.support.conform import WireError, problems, validate_event, validate_response
from tests.support.replay import Event, Json, Replay, require, same
from tests.support.sse import Frames, SseReader, iter_sse, read_sse

__all__ = [
    "Frames",
    "SseReader",
    "WireError",
    "check_finished",
    "check_stream",
    "iter_sse",
    "problems",
    "read_sse",
    "rebuild",
    "validate_event",
    "validate_response",
]

PRELUDES: Final = (
    ["response.created", "response.in_progress"],
    ["response.created", "response.queued", "response.in_progress"],
    ["response.queued", "response.created", "response.in_progress"],
)
OPENING: Final = ("response.created", "response.queued", "response.in_progress")
# The types have no `response.cancelled`, so a cancelled response ends with one of the other two.
TERMINAL: Final = {
    "response.completed": ("completed",),
    "response.incomplete": ("incomplete", "cancelled"),
    "response.failed": ("failed", "cancelled"),
}
# All other keys of a response are equal in all its events.
CHANGING: Final = frozenset(
    {
        "status",
        "output",
        "usage",
        "completed_at",
        "error",
        "incomplete_details",
        "service_tier",
        "tool_usage",
        "moderation",
        "prompt_cache_diagnostics",
    }
)


def check_stream(
    events: Sequence[Event], *, validate: bool = True, adapted: Collection[str] = (), taken_over: bool = False
) -> Json:
    """Raise WireError unless these are all events of one well-formed stream; return its final response.

    `validate=False` skips the types, to check the protocol of many streams quickly. `adapted` are the fields that say
    at the end how the model server was asked, which did not get the client's values. `taken_over` is whether an attempt
    was cut off with its server, whose items the response leaves out if they were made again.
    """
    for position, event in enumerate(events):
        if validate:
            validate_event(event)
        require(event.get("sequence_number") == position, f"event {position} has number {event.get('sequence_number')}")
    final = _check_terminal(events)
    body = _check_prelude(events)
    _check_snapshots(events, adapted)
    replay = _replay(body)
    for index, item in enumerate(replay.items):
        require(item.done is not None, f"item {index} ({item.type}) is never done")
    streamed = _kept(replay.output, final["output"]) if taken_over else replay.output
    same(streamed, final["output"], "the final response's output")
    check_finished(final)
    return final


def _kept(streamed: list[Json], final: list[Json]) -> list[Json]:
    """Return the items of a stream without those that its response leaves out because they were made again.

    These are items of an attempt that was cut off with its server, so something follows them.
    """
    ids = {item["id"] for item in final}
    left_out = [index for index, item in enumerate(streamed) if item["id"] not in ids]
    require(not left_out or left_out[-1] < len(streamed) - 1, "the response leaves out its last item")
    return [item for item in streamed if item["id"] in ids]


def rebuild(events: Sequence[Event]) -> Json:
    """Return the response described by these events, from the start of a stream to any point in it.

    It has the fields of the last snapshot, and the output from the items' own events.
    """
    snapshots = [event["response"] for event in events if "response" in event]
    require(bool(snapshots), "no event carries a response")
    items = [event for event in events if "response" not in event and event["type"] != "error"]
    return {**deepcopy(snapshots[-1]), "output": _replay(items).output}


def check_finished(response: Json) -> None:
    """Raise WireError unless a finished response's status is consistent with its error, details, times and items."""
    status = response["status"]
    require(
        (response.get("error") is not None) == (status == "failed"), f"status {status}, error {response.get('error')}"
    )
    details = response.get("incomplete_details")
    require((details is not None) == (status == "incomplete"), f"status {status}, incomplete_details {details}")
    require(status != "incomplete" or bool((details or {}).get("reason")), "incomplete for no reason")
    completed_at = response.get("completed_at")
    require((completed_at is not None) == (status == "completed"), f"status {status}, completed_at {completed_at}")


def _check_terminal(events: Sequence[Event]) -> Json:
    types = [event["type"] for event in events]
    ends = [name for name in types if name in TERMINAL]
    require(len(ends) == 1, f"{len(ends)} terminal events: {ends}")
    require(types[-1] == ends[0], f"{types[-1]} comes after {ends[0]}")
    failed = [position for position, name in enumerate(types) if name == "error"]
    require(failed in ([], [len(types) - 2]), "an error event comes anywhere but before the terminal event")
    require(not failed or ends == ["response.failed"], f"after an error event comes {ends[0]}")
    final: Json = events[-1]["response"]
    require(final.get("status") in TERMINAL[ends[0]], f"{ends[0]} has status {final.get('status')!r}")
    return final


def _check_prelude(events: Sequence[Event]) -> list[Event]:
    """Return the events between the opening ones and the end: those about items."""
    types = [event["type"] for event in events]
    length = next(position for position, name in enumerate(types) if name not in OPENING)
    never_ran = types[length] in ("response.failed", "response.incomplete", "error")  # such as cancelled in the queue
    known = types[:length] in PRELUDES or (never_ran and any(types[:length] == each[:length] for each in PRELUDES))
    require(length > 0 and known, f"the stream opens with {types[: length + 1]}")
    body = [event for event in events[length:-1] if event["type"] != "error"]
    require(not any(event["type"] in OPENING for event in body), "a second opening event comes later")
    return body


def _check_snapshots(events: Sequence[Event], adapted: Collection[str]) -> None:
    """Check that all events have the same response; opening events have no output and the matching status."""
    carried = [event for event in events if "response" in event]
    constant = _constant(carried[0]["response"])
    for event in carried:
        but = () if event["response"]["status"] in UNFINISHED else adapted
        same(_constant(constant, but), _constant(event["response"], but), f"{event['type']}: the constant fields")
        if event["type"] in OPENING:
            same([], event["response"]["output"], f"{event['type']}: output")
            started = event["type"] == "response.in_progress"
            allowed = ("in_progress",) if started else ("in_progress", "queued")
            require(event["response"]["status"] in allowed, f"{event['type']} has status {event['response']['status']}")


def _constant(response: Json, but: Collection[str] = ()) -> Json:
    return {key: value for key, value in response.items() if key not in CHANGING and key not in but}


def _replay(body: Sequence[Event]) -> Replay:
    replay = Replay()
    for event in body:
        try:
            replay.apply(event)
        except WireError as problem:
            place = f"event {event.get('sequence_number')} ({event['type']})"
            raise WireError(f"{place}: {problem}") from problem
    return replay
