"""Runs the checks of the grammars of requests in threads of its own: the worst take many seconds."""

import asyncio
import contextlib
import threading

from .engine.errors import QueueFullError
from .errors import InvalidRequest
from .grammar import TurnGrammar

PLACES = 4
SECONDS = 10.0
"""Number of threads, and time limits for one check and for the wait before it."""


class GrammarChecks:
    """Checks grammars in threads of its own, a few at a time.

    A thread cannot be ended. One that takes too long works on and keeps its place, so there are never more of them.
    """

    def __init__(self, places: int = PLACES, seconds: float = SECONDS) -> None:
        self._places = asyncio.Semaphore(places)
        self._seconds = seconds

    async def check(self, grammar: TurnGrammar) -> None:
        """Check a grammar. InvalidRequest: it cannot be used, or takes too long. QueueFullError: others do."""
        try:
            async with asyncio.timeout(self._seconds):
                await self._places.acquire()
        except TimeoutError:
            raise QueueFullError("The schemas of other requests are still being checked: try again later") from None
        checking = self._start(grammar)
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.shield(checking)
        except TimeoutError:
            late = f"The schema was not checked within {self._seconds:.0f} seconds: use a simpler one"
            raise InvalidRequest(late, param=grammar.field) from None

    def _start(self, grammar: TurnGrammar) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        checking: asyncio.Future[None] = loop.create_future()
        checking.add_done_callback(self._free_place)
        # A thread of a pool would keep the process from ending, and one of the loop's would be missing elsewhere.
        threading.Thread(target=_check, args=(grammar, loop, checking), name="grammar-check", daemon=True).start()
        return checking

    def _free_place(self, checking: asyncio.Future[None]) -> None:
        checking.exception()  # its request may have ended
        self._places.release()


def _check(grammar: TurnGrammar, loop: asyncio.AbstractEventLoop, checking: asyncio.Future[None]) -> None:
    error: Exception | None = None
    try:
        grammar.check()
    except Exception as raised:  # noqa: BLE001 - whatever it is, the request raises it
        error = raised
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_resolve, checking, error)


def _resolve(checking: asyncio.Future[None], error: Exception | None) -> None:
    if error is None:
        checking.set_result(None)
    else:
        checking.set_exception(error)
