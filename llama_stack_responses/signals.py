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
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

type Handler = Callable[[int, FrameType | None], object]


def hear_end(told: Callable[[], asyncio.Future[None] | None], drain: float) -> None:
    """Has `told` called in the running event loop when the process gets a signal to end; its handler follows as before.

    It follows when what `told` returned is done, if that was anything: uvicorn closes WebSockets as soon as it hears.
    If it is uvicorn's, the connections that are open `drain` seconds after the signal are broken off.
    Does nothing outside the main thread, where no signal can be heard.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        before = signal.getsignal(number)
        if callable(before):
            signal.signal(number, _both(loop, told, before, drain))


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
        loop.call_later(drain, _break_off, before)
        if goodbye is None:
            before(number, None)
            return
        goodbye.add_done_callback(lambda _: before(number, None))
        loop.call_later(drain, goodbye.cancel)

    return handle


def _break_off(handler: Handler) -> None:
    """Breaks off the connections of the uvicorn server whose method the handler is."""
    state: Any = getattr(getattr(handler, "__self__", None), "server_state", None)
    for connection in list(getattr(state, "connections", ())):
        # Closing it would wait until the client has read what is on its way.
        connection.transport.abort()
