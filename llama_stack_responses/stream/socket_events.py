"""Events that exist only on a WebSocket, as in `openai.types.responses.ResponsesServerEvent`.

Like those of `events`, they are created nowhere else. A response's own events are the same on every transport.
"""

from __future__ import annotations

from ..core.errors import ApiError
from ..core.types import Json
from .events import Event


def refused(error: ApiError, sequence_number: int | None = None) -> Event:
    """Return the nested error event; with a sequence number if it is part of a response's stream."""
    fields = error.body()["error"]
    if headers := error.retry_headers:
        fields["headers"] = headers
    numbered = {} if sequence_number is None else {"sequence_number": sequence_number}
    return {"type": "error", **numbered, "status": error.status, "error": fields}


def steer_accepted(sequence_number: int, steer: Json) -> Event:
    """Return the event; `steer` has its `id` and `previous_response_id`."""
    return {"type": "response.steer.accepted", "sequence_number": sequence_number, "steer": steer}


def steer_pending(sequence_number: int, steer: Json, required_input: list[Json]) -> Event:
    """Return the event; `required_input` holds stubs of what the client must send before `steer` can take effect."""
    return {
        "type": "response.steer.pending",
        "sequence_number": sequence_number,
        "steer": steer,
        "reason": "waiting_for_required_input",
        "required_input": required_input,
    }


def steer_failed(sequence_number: int, steer: Json, code: str, message: str) -> Event:
    """Return the event; `steer` has its `input`, its `previous_response_id`, and its `id` if it was accepted before."""
    return {
        "type": "response.steer.failed",
        "sequence_number": sequence_number,
        "steer": steer,
        "error": {"type": "invalid_request_error", "code": code, "message": message},
    }
