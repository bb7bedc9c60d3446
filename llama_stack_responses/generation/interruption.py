"""Ends a generation with an error, from outside its task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from ..core.errors import ApiError


class Interruption:
    """Ends the work of a generation early."""

    __slots__ = ("_error", "_scope")

    def __init__(self) -> None:
        self._error: ApiError | None = None
        self._scope: asyncio.Timeout | None = None

    def end(self, error: ApiError) -> None:
        """End the work with this error; do nothing if it does not run, or ends already."""
        if self._scope and not self._error:
            self._error = error
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def within[Result](self, work: Awaitable[Result]) -> Result:
        """Return the result of the work.

        Raises:
            ApiError: the work was ended with it, or has failed itself.
        """
        try:
            async with asyncio.timeout(None) as self._scope:
                return await work
        except TimeoutError:
            if self._error is None:
                raise
            raise self._error from None
        finally:
            self._scope = None
