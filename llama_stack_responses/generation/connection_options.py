"""Options of a response on a WebSocket connection."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..inputs.connection_memory import ConnectionMemory
from .stop_point import StopPoint


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Options that come from the connection, not from the request.

    Attributes:
        memory: the connection's memory of responses that are not stored.
        generate: whether to ask the model; if not, the response only warms up the connection.
        stop_point: ends the response early, for steering.
    """

    memory: ConnectionMemory
    generate: bool = True
    stop_point: StopPoint = field(default_factory=StopPoint)
