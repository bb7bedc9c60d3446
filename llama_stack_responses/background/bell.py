"""Wakes who waits for something in this process."""

from __future__ import annotations

import asyncio


class Bell:
    """Futures by name: whoever waits listens before it looks, so that nothing is missed in between."""

    def __init__(self) -> None:
        self._listening: dict[str, asyncio.Future[None]] = {}

    def listen(self, name: str) -> asyncio.Future[None]:
        """A future that is done with the next ring."""
        future = self._listening.get(name)
        if future is None:
            future = self._listening[name] = asyncio.get_running_loop().create_future()
        return future

    def ring(self, name: str) -> None:
        """Wakes all that listen for this name."""
        future = self._listening.pop(name, None)
        if future is not None and not future.done():
            future.set_result(None)
