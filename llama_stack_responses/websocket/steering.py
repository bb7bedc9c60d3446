"""The input that steers the responses of one connection, from its acceptance until a response begins with it."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from ..core.errors import ApiError
from ..core.ids import new_id
from ..core.schema.shapes import DEFAULT_LIMITS, At, missing
from ..core.schema.steer_input import as_items, check_steer, required_input
from ..core.stream.events import Event
from ..core.stream.socket_events import steer_accepted, steer_failed, steer_pending
from ..generation.stop_point import Boundary

Json = dict[str, Any]

_KNOWN: Final = 256
"""Responses that ended and of which it is known how, at most."""
_OVERHEAD: Final = 512
"""Bytes that a steer takes beside its input."""


@dataclass(frozen=True, slots=True)
class Steer:
    """Accepted input.

    Attributes:
        id: its own id.
        target: the response that it is to steer.
        input: as the client sent it.
        size: in bytes.
    """

    id: str
    target: str
    input: str | list[Json]
    size: int

    def named(self) -> Json:
        """How events name it."""
        return {"id": self.id, "previous_response_id": self.target}


@dataclass(frozen=True, slots=True)
class Successor:
    """A response that is to begin by itself.

    Attributes:
        body: its request.
        steers: the input in it.
    """

    body: Json
    steers: list[Steer]


@dataclass(slots=True)
class _Target:
    """A response of this connection, and what waits for its end."""

    lane: str | None
    body: Json
    boundary: Boundary
    status: str = "in_progress"
    queue: list[Steer] = field(default_factory=list)


class Steering:
    """Queues input for responses, and says what becomes of it when they end.

    Args:
        most: how much may be queued for one response.
        most_bytes: size of all that is queued.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._targets: OrderedDict[str, _Target] = OrderedDict()
        self._numbers = count()

    def began(self, response_id: str, lane: str | None, body: Json, boundary: Boundary) -> None:
        """Says that a response can be steered from now on; `body` is its request, whose settings successors inherit."""
        self._targets[response_id] = _Target(lane, body, boundary)
        settled = [key for key, each in self._targets.items() if each.status != "in_progress" and not each.queue]
        for key in settled[: max(0, len(self._targets) - _KNOWN)]:
            del self._targets[key]

    def steer(self, event: Json) -> tuple[Event, str | None]:
        """Takes a `response.steer` event; what to tell the client, and in which lane.

        Raises:
            ApiError: 400, if it does not even say what it is to steer and how.
        """
        target_id, given = event.get("previous_response_id"), event.get("input")
        if not isinstance(target_id, str):
            raise missing(At("previous_response_id", DEFAULT_LIMITS))
        if given is None:
            raise missing(At("input", DEFAULT_LIMITS))
        target = self._targets.get(target_id)
        size = len(json.dumps(given)) + _OVERHEAD
        if problem := self._problem(event, target, size):
            unaccepted = {"previous_response_id": target_id, "input": given}
            return steer_failed(next(self._numbers), unaccepted, *problem), target.lane if target else None
        assert target is not None
        steer = Steer(new_id("steer"), target_id, given, size)
        target.queue.append(steer)
        target.boundary.wanted = True
        self._bytes += size
        return steer_accepted(next(self._numbers), steer.named()), target.lane

    def _problem(self, event: Json, target: _Target | None, size: int) -> tuple[str, str] | None:
        """The code and the message for input that is not taken."""
        try:
            check_steer(event)
        except ApiError as error:
            return "invalid_input", error.message
        if target is None:
            return "response_not_found", "No response with this id was made on this connection."
        if target.status == "completed":
            return "response_already_completed", "The response has completed. Send the input in a 'response.create'."
        if target.status != "in_progress":
            return "response_not_active", f"The response has ended as {target.status}."
        if unsteerable := [name for name in ("conversation", "context_management") if target.body.get(name)]:
            return "steering_not_supported", f"A response with '{unsteerable[0]}' cannot be steered."
        if len(target.queue) >= self._most or self._bytes + size > self._most_bytes:
            return "too_many_pending_steers", "Too much input waits for this response to end."
        return None

    def ended(self, response: Json) -> tuple[list[Event], Successor | None]:
        """What to tell the client when a response has ended, and the response that follows by itself."""
        target = self._targets[response["id"]]
        target.status = response["status"]
        body, target.body = target.body, {}
        if not target.queue:
            return [], None
        if target.status == "completed" and (required := required_input(response["output"])):
            return [steer_pending(next(self._numbers), each.named(), required) for each in target.queue], None
        steers = self.committed(response["id"])
        if target.status == "completed" or (response["incomplete_details"] or {}).get("reason") == "steered":
            # With the version of its prompt that this one had, whatever has become of the prompt since.
            inherited = body | {"prompt": response["prompt"], "previous_response_id": response["id"], "input": []}
            return [], Successor(steered(inherited, steers), steers)
        return self.failed(steers, "response_not_active", f"The response has ended as {target.status}."), None

    def queued(self, response_id: Any, lane: str | None) -> list[Steer]:
        """The input that a request which goes on from this response in this lane begins with."""
        target = self._targets.get(response_id) if isinstance(response_id, str) else None
        return list(target.queue) if target and target.lane == lane and target.status == "completed" else []

    def committed(self, response_id: str) -> list[Steer]:
        """Takes what was queued for this response out of the queue."""
        target = self._targets[response_id]
        steers, target.queue = target.queue, []
        self._bytes -= sum(steer.size for steer in steers)
        return steers

    def failed(self, steers: list[Steer], code: str, message: str) -> list[Event]:
        """Gives accepted input back."""
        return [
            steer_failed(next(self._numbers), each.named() | {"input": each.input}, code, message) for each in steers
        ]


def steered(body: Json, steers: list[Steer]) -> Json:
    """The request with this input before its own."""
    given = body.get("input")
    if not steers or not isinstance(given, str | list | None):
        return body
    return body | {"input": [item for each in [*(steer.input for steer in steers), given] for item in as_items(each)]}
