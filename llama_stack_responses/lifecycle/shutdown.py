"""Callbacks at the server's shutdown, and the wait until everything that is registered has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ShutdownCoordinator:
    """Notifies all registrations of the shutdown, and waits until the last registration has ended.

    Attributes:
        begun: whether the shutdown has begun.
    """

    def __init__(self) -> None:
        self.begun = False
        self._callbacks: dict[Callable[[], None], None] = {}
        self._empty: asyncio.Future[None] | None = None

    @contextmanager
    def register(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` when the shutdown begins, or at once if it has begun; the block ends the registration."""
        self._callbacks[callback] = None
        if self.begun:
            callback()
        try:
            yield
        finally:
            self._callbacks.pop(callback, None)
            if self._empty and not self._callbacks and not self._empty.done():
                self._empty.set_result(None)

    def begin(self) -> asyncio.Future[None] | None:
        """Begin the shutdown and call all registered callbacks.

        Returns:
            A future that is done once all registrations have ended; None if there are none, or if the shutdown had
            begun before.
        """
        if self.begun or not self._callbacks:
            self.begun = True
            return None
        self.begun = True
        self._empty = asyncio.get_running_loop().create_future()
        for callback in list(self._callbacks):
            callback()
        return self._empty
