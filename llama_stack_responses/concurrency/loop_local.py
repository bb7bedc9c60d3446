"""Resources that belong to one event loop, such as connection pools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any


class Closing(Exception):  # noqa: N818 - not an error of the resource
    """A `LoopLocal` resource is being closed."""


class LoopLocal[Resource]:
    """A resource of the running event loop, such as a connection pool: one of another loop may never answer.

    It is opened by the first call, and again after an opening that failed, after `close`, or when the loop has changed.

    Args:
        open: opens the resource.
    """

    def __init__(self, open: Callable[[], Coroutine[Any, Any, Resource]]) -> None:  # noqa: A002 - as a context has it
        self._open = open
        self._opening: asyncio.Task[Resource] | None = None
        self._closing: asyncio.AbstractEventLoop | None = None

    async def get(self) -> Resource:
        """Return the resource of the running loop; raise what opening it raised, or `Closing` while it closes."""
        loop, opening = asyncio.get_running_loop(), self._opening
        if self._closing is loop:
            raise Closing
        if opening is None or opening.get_loop() is not loop or _has_failed(opening):
            opening = self._opening = loop.create_task(self._open())
        return await asyncio.shield(opening)

    @property
    def opened(self) -> Resource | None:
        """The resource, if it has been opened."""
        opening = self._opening
        return opening.result() if opening and opening.done() and not _has_failed(opening) else None

    async def close(self, close: Callable[[Resource], Coroutine[Any, Any, Any]]) -> None:
        """Close the resource and forget it. An error is ignored, and so is a resource of another loop."""
        opening, self._opening = self._opening, None
        loop = asyncio.get_running_loop()
        if opening is None or opening.get_loop() is not loop:
            return
        # A task that still works with the resource must not open another one, which nothing would close.
        self._closing = loop
        try:
            with suppress(Exception):
                await close(await opening)
        finally:
            self._closing = None


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
