"""The phase in which a new response may still be refused, with nothing of it left in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..core.errors import ApiError
from ..store.records import Op


class Acceptance:
    """Ends when the model server accepts the request, after `timeout` seconds, or with a refusal.

    Args:
        taken: the ops that undo, after a refusal, the extra ops of the commit that stored the response.
        timeout: seconds after which the response counts as begun anyway; None for no such bound.
    """

    def __init__(self, taken: Sequence[Op], timeout: float | None) -> None:
        self.taken = taken
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[ApiError | None] = self._loop.create_future()
        self._timer = None if timeout is None else self._loop.call_later(timeout, self.end)
        self._accepted: asyncio.Future[None] | None = None
        self._refusal: ApiError | None = None

    @property
    def is_over(self) -> bool:
        """Whether the response counts as begun or was refused: a later error becomes part of the response."""
        return self._end.done() or (self._accepted is not None and self._accepted.done())

    def end(self) -> None:
        """End the phase: the response counts as begun unless it was refused."""
        if self._timer:
            self._timer.cancel()
        if not self._end.done():
            self._end.set_result(self._refusal)

    def end_with(self, accepted: asyncio.Future[None]) -> None:
        """End the phase as soon as `accepted` is done."""
        self._accepted = accepted
        accepted.add_done_callback(lambda _: self.end())

    def refuse(self, error: ApiError) -> None:
        """Record the refusal, which `verdict` raises at the end of the phase, and stop the timer."""
        self._refusal = error
        if self._timer:
            self._timer.cancel()

    async def ended(self) -> None:
        """Wait for the end of the phase; a refusal is not raised."""
        await asyncio.wait([self._end])

    async def verdict(self) -> None:
        """Wait for the end of the phase.

        Raises:
            ApiError: the refusal.
        """
        await self.ended()
        if error := self._end.result():
            raise error
