"""Signal handlers that start a graceful shutdown before uvicorn's own.

- Running responses may finish first, for as long as the configuration says.
- uvicorn runs the lifespan shutdown only after all open streams have ended, and streams do not end by themselves. So
  SIGINT and SIGTERM are handled here first, ahead of the handlers that were installed before.
- uvicorn closes WebSockets at once. So its handler runs after the WebSockets have sent their last messages.
- uvicorn accepts connections until then. So its listening sockets are closed before, and each connection after
  the answer to its next request. A load balancer goes to another server without losing a request.
- uvicorn waits without limit for clients that do not read. So open connections are aborted after `flush_seconds`.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

from .listening_sockets import call_if_parent_ends, drop_new_connections, is_shared

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_ADMITTING_SECONDS: Final = 0.02
"""Time in which connections that were opened before the signal are accepted."""

type Handler = Callable[[int, FrameType | None], object]


class Connections:
    """The connections of a uvicorn server; empty for any other server.

    Args:
        handler: the server's signal handler, a bound method of the uvicorn server.
    """

    def __init__(self, handler: object) -> None:
        self._server: Any = getattr(handler, "__self__", None)
        self._state: Any = getattr(self._server, "server_state", None)

    @property
    def processes(self) -> int:
        """The number of processes that share the server's socket."""
        workers: int = getattr(getattr(self._server, "config", None), "workers", 1)
        return workers if is_shared() else 1

    @property
    def requesting(self) -> int:
        """The number of open HTTP connections, with and without a request."""
        return sum(hasattr(each, "close_after_answer") for each in getattr(self._state, "connections", ()))

    def leave(self) -> None:
        """Accept no more connections, and close each one after the answer to its next request.

        A socket that several workers share stays open: its parent process closes it.
        """
        servers = getattr(self._server, "servers", ())
        if not is_shared():
            drop_new_connections(servers)
            loop = asyncio.get_running_loop()
            loop.call_later(_ADMITTING_SECONDS, lambda: [server.close() for server in servers])
            # Those that were accepted last have no protocol before.
            loop.call_later(2 * _ADMITTING_SECONDS, self._close_after_answers)
        self._close_after_answers()

    def _close_after_answers(self) -> None:
        for connection in list(getattr(self._state, "connections", ())):
            if hasattr(connection, "close_after_answer"):
                connection.close_after_answer()

    def abort(self, scope: Mapping[str, Any]) -> None:
        """Abort the connection of a request: closing it would wait until the client has read all data."""
        for connection in list(getattr(self._state, "connections", ())):
            cycle = getattr(connection, "cycle", None)
            # A middleware may copy the scope; the `state` in it stays the same object for each request.
            if cycle is not None and cycle.scope.get("state") is scope.get("state"):
                connection.transport.abort()

    def abort_all(self) -> None:
        """Abort all connections."""
        for connection in list(getattr(self._state, "connections", ())):
            connection.transport.abort()


def install_signal_handlers(
    begin: Callable[[], asyncio.Future[None] | None],
    flush_seconds: float,
    finish: Callable[[], asyncio.Future[None] | None] = lambda: None,
    accepting_seconds: float = 0,
) -> Connections:
    """Handle SIGINT and SIGTERM in the running event loop, then call the handler that was installed before.

    The earlier handler is called when the future that `begin` returned is done, `flush_seconds` after the signal at the
    latest, or immediately if `begin` returned None. Outside the main thread, no handler is installed: Python allows
    signal handlers in the main thread only.

    Args:
        begin: begins the shutdown.
        flush_seconds: time from then until the connections of a uvicorn server that are still open are aborted.
        finish: called first; the shutdown begins when its future is done or cancelled, at once if it returned None. A
            second signal cancels the future.
        accepting_seconds: time from the signal until a uvicorn server accepts no more connections.

    Returns:
        The server's connections.
    """
    connections = Connections(signal.getsignal(signal.SIGTERM))
    if threading.current_thread() is not threading.main_thread():
        return connections
    ending = _Ending(asyncio.get_running_loop(), begin, flush_seconds, finish, accepting_seconds)
    for number in _SIGNALS:
        before = signal.getsignal(number)
        if callable(before):
            signal.signal(number, ending.handler(before))
    call_if_parent_ends(lambda: signal.raise_signal(signal.SIGTERM))
    return connections


class _Ending:
    """The handling of signals; the arguments are those of `install_signal_handlers`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[], asyncio.Future[None] | None],
        flush_seconds: float,
        finish: Callable[[], asyncio.Future[None] | None],
        accepting_seconds: float,
    ) -> None:
        self._loop = loop
        self._begin = begin
        self._flush_seconds = flush_seconds
        self._finish = finish
        self._accepting_seconds = accepting_seconds
        self._work: asyncio.Future[None] | None = None
        self._first = 0

    def handler(self, before: Handler) -> Handler:
        """Return the handler of a signal, given the earlier one."""

        def handle(number: int, frame: FrameType | None) -> None:
            if self._loop.is_running():
                self._loop.call_soon_threadsafe(self._on_signal, number, before)
            else:
                before(number, frame)

        return handle

    def _on_signal(self, number: int, before: Handler) -> None:
        if self._work and not self._work.done():
            # Ctrl-C reaches all processes of a terminal, and then their parent sends each worker SIGTERM.
            if number == self._first or not is_shared():
                self._work.cancel()
            return
        self._first = number
        self._loop.call_later(self._accepting_seconds, Connections(before).leave)
        self._work = self._finish()
        if self._work is None:
            self._end(number, before)
        else:
            self._work.add_done_callback(lambda _: self._end(number, before))

    def _end(self, number: int, before: Handler) -> None:
        shutdown = self._begin()
        self._loop.call_later(self._flush_seconds, Connections(before).abort_all)
        if shutdown is None:
            before(number, None)
            return
        shutdown.add_done_callback(lambda _: before(number, None))
        self._loop.call_later(self._flush_seconds, shutdown.cancel)
