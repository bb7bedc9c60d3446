"""Those who have something to say when the server is told to end, and the wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Closing:
    """Knows who is there, tells them that the server ends, and when the last one has gone.

    Attributes:
        begun: whether they have been told.
    """

    def __init__(self) -> None:
        self.begun = False
        self._guests: set[Callable[[], None]] = set()
        self._empty: asyncio.Future[None] | None = None

    @contextmanager
    def guest(self, told: Callable[[], None]) -> Iterator[None]:
        """Somebody who is there until the block ends, and is told of the end by `told`; at once, if it has begun."""
        self._guests.add(told)
        if self.begun:
            told()
        try:
            yield
        finally:
            self._guests.discard(told)
            if self._empty and not self._guests and not self._empty.done():
                self._empty.set_result(None)

    def begin(self) -> asyncio.Future[None] | None:
        """Tells everybody. What is returned is done once they have gone; None if nobody is there, or is waited for."""
        if self.begun or not self._guests:
            self.begun = True
            return None
        self.begun = True
        self._empty = asyncio.get_running_loop().create_future()
        for told in list(self._guests):
            told()
        return self._empty
