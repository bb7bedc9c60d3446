"""Notices that a client disconnects.

A task that waits for the next message of ASGI takes two kilobytes, and uvicorn's event another one. An open stream
takes neither: once the request's body has been read, the event is replaced by an object that calls a function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from starlette.types import Receive

from ..concurrency.small_event import SmallEvent
from .uvicorn_request import server_cycle

_NEEDED: Final = ("disconnected", "flow", "message_event")


class ClientWatch(Protocol):
    """Calls a function if a client disconnects."""

    def stop(self) -> None:
        """Do not call it any more."""
        ...


class _WatchedEvent(SmallEvent):
    """Replaces uvicorn's event of a request, which is set for each message. Calls `left` at the client's disconnect.

    Args:
        cycle: uvicorn's state of the request.
        left: the function.
    """

    __slots__ = ("_cycle", "_left")

    def __init__(self, cycle: Any, left: Callable[[], object]) -> None:
        super().__init__(is_set=cycle.message_event.is_set())
        self._cycle = cycle  # it refers to this object in turn, until `stop`
        self._left: Callable[[], object] | None = left

    def set(self) -> None:
        super().set()
        if self._left and self._cycle.disconnected:
            self._left()

    def stop(self) -> None:
        self._left = self._cycle = None


class _Waiting:
    """Waits for the client's messages, where the server is not known.

    Args:
        receive: receives them.
        left: called when the client has disconnected.
    """

    def __init__(self, receive: Receive, left: Callable[[], object]) -> None:
        self._left = left
        self._task = asyncio.ensure_future(gone(receive))
        self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        self._task.cancel()

    def _ended(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled():
            self._left()


def watch_client(receive: Receive, left: Callable[[], object]) -> ClientWatch:
    """Call `left` if the client disconnects, until the returned watch is stopped.

    Args:
        receive: what the server passed for the request, whose body has been read.
        left: the function.
    """
    cycle = server_cycle(receive, _NEEDED)
    if cycle is None:
        return _Waiting(receive, left)
    watch = cycle.message_event = _WatchedEvent(cycle, left)
    if cycle.disconnected:
        left()
    else:
        cycle.flow.resume_reading()  # as `receive` does: a disconnect is not seen while reading is paused
    return watch


async def gone(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
