"""The end of a connection reaches the request that is being answered, also while pipelined requests wait.

uvicorn's protocol for httptools keeps the newest request of a connection only, and marks that one as disconnected. An
earlier request, whose answer is under way, would run to its end for a client that is gone.

A WebSocket that is opened behind a request without a complete answer would get the rest of that answer, and its end
would not reach the request. So such a connection is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from .http_protocol import http_protocol

_ANSWERED: Final = "_llama_stack_responses_answered"
"""The attribute for the state of the request that is being answered. Only a connection with waiting requests has one
of its own: with one more, the attributes of each connection would take 1.5 kB."""


def disconnect_answered_requests() -> None:
    """Extend uvicorn's protocol for httptools. With another protocol, nothing changes."""
    if protocol := http_protocol():
        extend(protocol)


def extend(protocol: Any) -> None:
    """Extend a protocol class."""
    if not hasattr(protocol, _ANSWERED):
        protocol.on_headers_complete = _noting_first(protocol.on_headers_complete)
        protocol.on_response_complete = _noting_next(protocol.on_response_complete)
        protocol.connection_lost = _disconnecting(protocol.connection_lost)
        protocol.handle_websocket_upgrade = _after_answers(protocol.handle_websocket_upgrade)
        setattr(protocol, _ANSWERED, None)


def _noting_first(on_headers_complete: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(on_headers_complete)
    def called(self: Any) -> None:
        newest, alone = self.cycle, not self.pipeline
        on_headers_complete(self)
        if alone and self.pipeline:
            setattr(self, _ANSWERED, newest)

    return called


def _noting_next(on_response_complete: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(on_response_complete)
    def called(self: Any) -> None:
        if self.pipeline:
            setattr(self, _ANSWERED, self.pipeline[-1][0])
        else:
            self.__dict__.pop(_ANSWERED, None)
        on_response_complete(self)

    return called


def _disconnecting(
    connection_lost: Callable[[Any, Exception | None], None],
) -> Callable[[Any, Exception | None], None]:
    @wraps(connection_lost)
    def called(self: Any, error: Exception | None) -> None:
        answered = getattr(self, _ANSWERED)
        if answered is not None and not answered.response_complete:
            answered.disconnected = True
            answered.message_event.set()
        connection_lost(self, error)

    return called


def _after_answers(handle_websocket_upgrade: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(handle_websocket_upgrade)
    def called(self: Any) -> None:
        if self.cycle is None or self.cycle.response_complete:
            handle_websocket_upgrade(self)
        else:
            self.transport.abort()

    return called
