"""Hears that the server is to end while there is still time to end well.

uvicorn waits for open streams before it lets anybody know, and streams wait for nobody. So the signals themselves are
heard, ahead of whoever handled them before. It closes WebSockets at once, so it hears of the end when they have said
goodbye. It also waits without limit for clients that do not read what they are
sent, so those are left after a while: their connections are broken off.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

type Handler = Callable[[int, FrameType | None], object]


class Connections:
    """The connections of the uvicorn server that a signal handler belongs to; none, if it is another server's.

    Args:
        handler: the handler of the signal that ends the server.
    """

    def __init__(self, handler: object) -> None:
        self._state: Any = getattr(getattr(handler, "__self__", None), "server_state", None)

    def abort(self, scope: Mapping[str, Any]) -> None:
        """Ends the connection of a request at once: closing it would wait until the client has read what was sent."""
        for connection in list(getattr(self._state, "connections", ())):
            cycle = getattr(connection, "cycle", None)
            # A middleware may copy the scope; the state in it is one object for each request.
            if cycle is not None and cycle.scope.get("state") is scope.get("state"):
                connection.transport.abort()

    def abort_all(self) -> None:
        """Ends all connections at once."""
        for connection in list(getattr(self._state, "connections", ())):
            connection.transport.abort()


def hear_end(told: Callable[[], asyncio.Future[None] | None], drain: float) -> Connections:
    """Has `told` called in the running event loop when the process gets a signal to end; its handler follows as before.

    It follows when what `told` returned is done, if that was anything: uvicorn closes WebSockets as soon as it hears.
    If it is uvicorn's, the connections that are open `drain` seconds after the signal are broken off.
    Does nothing outside the main thread, where no signal can be heard.

    Returns:
        The server's connections.
    """
    connections = Connections(signal.getsignal(signal.SIGTERM))
    if threading.current_thread() is not threading.main_thread():
        return connections
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        before = signal.getsignal(number)
        if callable(before):
            signal.signal(number, _both(loop, told, before, drain))
    return connections


def _both(
    loop: asyncio.AbstractEventLoop, told: Callable[[], asyncio.Future[None] | None], before: Handler, drain: float
) -> Handler:
    def handle(number: int, frame: FrameType | None) -> None:
        if loop.is_running():
            loop.call_soon_threadsafe(end, number)
        else:
            before(number, frame)

    def end(number: int) -> None:
        goodbye = told()
        loop.call_later(drain, Connections(before).abort_all)
        if goodbye is None:
            before(number, None)
            return
        goodbye.add_done_callback(lambda _: before(number, None))
        loop.call_later(drain, goodbye.cancel)

    return handle
