"""Writes to the connection of a streamed answer, past ASGI.

`send` of ASGI is a coroutine through every middleware of the host. For an event of a hundred bytes, that takes longer
than all else that is done for it. So deltas are written to uvicorn's transport itself, as the chunk that uvicorn would
make of them. Everything else goes through `send`: the head, other events, the end, and whatever has to wait because the
client does not read.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, cast

from starlette.types import Receive, Scope

from .uvicorn_request import server_cycle

_PASS_BODIES: Final = ("llama_stack.", "ogx.", "starlette.middleware.cors")
"""Modules of the middlewares that are known to pass bodies on unchanged."""
_NEEDED: Final = ("transport", "flow", "disconnected", "chunked_encoding", "response_started", "response_complete")


class _Flow(Protocol):
    write_paused: bool


class _Transport(Protocol):
    def write(self, data: bytes) -> None: ...

    def is_closing(self) -> bool: ...


class _Cycle(Protocol):
    """uvicorn's state of one request (`uvicorn.protocols.http.httptools_impl.RequestResponseCycle`)."""

    transport: _Transport
    flow: _Flow
    disconnected: bool
    chunked_encoding: bool | None
    response_started: bool
    response_complete: bool


class DirectWriter:
    """Writes parts of the body of an answer whose head was sent.

    Args:
        cycle: uvicorn's state of the request.
    """

    __slots__ = ("_cycle", "_flow", "_transport")

    def __init__(self, cycle: _Cycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._flow = cycle.flow

    def write(self, body: bytes) -> bool:
        """Write a part of the body, which is not empty; return False if it has to be sent through ASGI instead."""
        cycle = self._cycle
        if self._flow.write_paused or cycle.disconnected or cycle.response_complete or self._transport.is_closing():
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True


def direct_writer(scope: Scope, receive: Receive) -> DirectWriter | None:
    """Return the writer for an answer whose head was sent; None if the server or a middleware is not known.

    Args:
        scope: the scope of the request.
        receive: what the server passed for it.
    """
    cycle = server_cycle(receive, _NEEDED)
    if cycle is None or not (cycle.response_started and cycle.chunked_encoding and pass_bodies(scope.get("app"))):
        return None
    return DirectWriter(cast("_Cycle", cycle))


def pass_bodies(app: Any) -> bool:
    """Return whether all middlewares of an application are known to pass bodies and messages on unchanged."""
    middlewares = getattr(app, "user_middleware", None)
    return middlewares is not None and all(each.cls.__module__.startswith(_PASS_BODIES) for each in middlewares)
