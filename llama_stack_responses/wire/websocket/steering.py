"""Steering input for the responses of one connection, from its acceptance to the response that begins with it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from ...core.errors import ApiError
from ...core.ids import new_id
from ...core.shapes import Location, missing
from ...core.types import Json
from ...generation.stop_point import StopPoint
from ...requests.steer_input import as_items, check_steer, required_input
from ...stream.events import Event
from ...stream.socket_events import steer_accepted, steer_failed, steer_pending

_MAX_REMEMBERED: Final = 256
"""Maximum responses whose final status is remembered."""
_OVERHEAD_BYTES: Final = 512
"""Bytes that a steer takes in addition to its input."""


@dataclass(frozen=True, slots=True)
class Steer:
    """Accepted input.

    Attributes:
        id: its own id.
        target: id of the response to steer.
        input: the input in the client's form.
        size: size in bytes.
    """

    id: str
    target: str
    input: str | list[Json]
    size: int

    def named(self) -> Json:
        """Return the fields that identify it in events."""
        return {"id": self.id, "previous_response_id": self.target}


@dataclass(frozen=True, slots=True)
class Successor:
    """A response that starts without a request of the client.

    Attributes:
        body: its request.
        steers: the input in it.
    """

    body: Json
    steers: list[Steer]


@dataclass(slots=True)
class _Target:
    """A response of this connection, and the input queued until its end."""

    lane: str | None
    body: Json
    stop_point: StopPoint
    status: str = "in_progress"
    queue: list[Steer] = field(default_factory=list)


class Steering:
    """Queues input for responses, and decides how it is used when they end.

    Args:
        max_inputs: maximum inputs in the queue of one response.
        max_bytes: maximum size of all queued input.
    """

    def __init__(self, max_inputs: int, max_bytes: int) -> None:
        self._max_inputs = max_inputs
        self._max_bytes = max_bytes
        self._bytes = 0
        self._targets: OrderedDict[str, _Target] = OrderedDict()
        self._numbers = count()

    def began(self, response_id: str, lane: str | None, body: Json, stop_point: StopPoint) -> None:
        """Register a response that can now be steered; successors inherit the settings of its request `body`."""
        self._targets[response_id] = _Target(lane, body, stop_point)
        settled = [key for key, each in self._targets.items() if each.status != "in_progress" and not each.queue]
        for key in settled[: max(0, len(self._targets) - _MAX_REMEMBERED)]:
            del self._targets[key]

    def steer(self, event: Json, size: int) -> tuple[Event, str | None]:
        """Handle a `response.steer` event of `size` bytes. Return the event for the client, and its lane.

        Raises:
            ApiError: 400 if the target or the input is missing.
        """
        target_id, steer_input = event.get("previous_response_id"), event.get("input")
        if not isinstance(target_id, str):
            raise missing(Location("previous_response_id"))
        if steer_input is None:
            raise missing(Location("input"))
        target = self._targets.get(target_id)
        size += _OVERHEAD_BYTES
        if problem := self._problem(event, target, size):
            unaccepted = {"previous_response_id": target_id, "input": steer_input}
            return steer_failed(next(self._numbers), unaccepted, *problem), target.lane if target else None
        assert target is not None
        steer = Steer(new_id("steer"), target_id, steer_input, size)
        target.queue.append(steer)
        target.stop_point.wanted = True
        self._bytes += size
        return steer_accepted(next(self._numbers), steer.named()), target.lane

    def _problem(self, event: Json, target: _Target | None, size: int) -> tuple[str, str] | None:
        """Return the code and the message if the input is not accepted."""
        try:
            check_steer(event)
        except ApiError as error:
            return "invalid_input", error.message
        if target is None:
            return "response_not_found", "No response with this id was created on this connection."
        if target.status == "completed":
            return "response_already_completed", "The response has completed. Send the input in a 'response.create'."
        if target.status != "in_progress":
            return "response_not_active", f"The response has ended as {target.status}."
        if unsteerable := [name for name in ("conversation", "context_management") if target.body.get(name)]:
            return "steering_not_supported", f"A response with '{unsteerable[0]}' cannot be steered."
        if len(target.queue) >= self._max_inputs or self._bytes + size > self._max_bytes:
            return "too_many_pending_steers", "Too much input is queued until this response ends."
        return None

    def ended(self, response: Json) -> tuple[list[Event], Successor | None]:
        """Return the events for the client when a response has ended, and its successor if there is one."""
        target = self._targets[response["id"]]
        target.status = response["status"]
        body, target.body = target.body, {}
        if not target.queue:
            return [], None
        if target.status == "completed" and (required := required_input(response["output"])):
            return [steer_pending(next(self._numbers), each.named(), required) for each in target.queue], None
        steers = self.committed(response["id"])
        if target.status == "completed" or (response["incomplete_details"] or {}).get("reason") == "steered":
            # The successor keeps the version of the prompt, even if the prompt has changed since.
            inherited = body | {"prompt": response["prompt"], "previous_response_id": response["id"], "input": []}
            return [], Successor(steered(inherited, steers), steers)
        return self.failed(steers, "response_not_active", f"The response has ended as {target.status}."), None

    def queued(self, response_id: Any, lane: str | None) -> list[Steer]:
        """Return the input that a request continuing this response in this lane begins with."""
        target = self._targets.get(response_id) if isinstance(response_id, str) else None
        return list(target.queue) if target and target.lane == lane and target.status == "completed" else []

    def committed(self, response_id: str) -> list[Steer]:
        """Remove the queued input of this response from the queue, and return it."""
        target = self._targets[response_id]
        steers, target.queue = target.queue, []
        self._bytes -= sum(steer.size for steer in steers)
        return steers

    def failed(self, steers: list[Steer], code: str, message: str) -> list[Event]:
        """Return the events that hand accepted input back to the client."""
        return [
            steer_failed(next(self._numbers), each.named() | {"input": each.input}, code, message) for each in steers
        ]


def steered(body: Json, steers: list[Steer]) -> Json:
    """Return the request with this input before its own."""
    inputs = body.get("input")
    if not steers or not isinstance(inputs, str | list | None):
        return body
    return body | {"input": [item for each in [*(steer.input for steer in steers), inputs] for item in as_items(each)]}
