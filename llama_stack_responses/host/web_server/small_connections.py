"""Replaces the deques of uvicorn's connections, which are nearly always empty: each takes 600 bytes even so.

uvicorn's protocol for httptools has one for pipelined requests, and one in the event that waits for a client to read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from ...concurrency.small_event import SmallEvent
from .http_protocol import http_protocol

_SMALL: Final = "_llama_stack_responses_small"


def shrink_connections() -> None:
    """Extend uvicorn's protocol for httptools. With another protocol, nothing changes."""
    if protocol := http_protocol():
        shrink(protocol)


def shrink(protocol: Any) -> None:
    """Extend a protocol class."""
    if not hasattr(protocol, _SMALL):
        protocol.connection_made = _replacing(protocol.connection_made)
        setattr(protocol, _SMALL, True)


def _replacing(connection_made: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @wraps(connection_made)
    def called(self: Any, transport: Any) -> None:
        connection_made(self, transport)
        self.pipeline = _Pipeline(self.pipeline)
        self.flow._is_writable_event = SmallEvent(is_set=not self.flow.write_paused)

    return called


class _Pipeline(list[Any]):
    """A list with what uvicorn uses of a deque; only a few requests can wait."""

    __slots__ = ()

    def appendleft(self, request: Any) -> None:
        """Add the newest request, which is answered last."""
        self.insert(0, request)
