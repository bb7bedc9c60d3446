"""Hears that the server is to end while there is still time to end well.

uvicorn waits for open streams before it lets anybody know, and streams wait for nobody. So the signals themselves are
heard, ahead of whoever handled them before.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

type Handler = Callable[[int, FrameType | None], object]


def hear_end(told: Callable[[], None]) -> None:
    """Has `told` called in the running event loop when the process gets a signal to end; its handler follows as before.

    Does nothing outside the main thread, where no signal can be heard.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        before = signal.getsignal(number)
        if callable(before):
            signal.signal(number, _both(loop, told, before))


def _both(loop: asyncio.AbstractEventLoop, told: Callable[[], None], before: Handler) -> Handler:
    def handle(number: int, frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(told)
        before(number, frame)

    return handle
