"""The first moments of a response that a client waits for: it can still be refused as if it had never been."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..core.errors import ApiError
from ..store.records import Op


class Opening:
    """Ends when the provider has accepted the response, when patience is at its end, or with a refusal.

    Args:
        taken: what undoes, in case of a refusal, what was stored beside the response.
        patience: seconds until the response counts as begun in any case; None for no such bound.
    """

    def __init__(self, taken: Sequence[Op], patience: float | None) -> None:
        self.taken = taken
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[ApiError | None] = self._loop.create_future()
        self._timer = None if patience is None else self._loop.call_later(patience, self.end)
        self._accepted: asyncio.Future[None] | None = None
        self._refusal: ApiError | None = None

    @property
    def over(self) -> bool:
        """Whether whatever goes wrong from now on is part of the response."""
        return self._end.done() or (self._accepted is not None and self._accepted.done())

    def end(self) -> None:
        """Lets the response count as begun, if it is not refused."""
        if self._timer:
            self._timer.cancel()
        if not self._end.done():
            self._end.set_result(self._refusal)

    def end_with(self, accepted: asyncio.Future[None]) -> None:
        """Lets the response count as begun as soon as `accepted` is done."""
        self._accepted = accepted
        accepted.add_done_callback(lambda _: self.end())

    def refuse(self, error: ApiError) -> None:
        """Says why there will be no response; with the end its client hears of it."""
        self._refusal = error
        if self._timer:
            self._timer.cancel()

    async def ended(self) -> None:
        """Waits for the end, whatever it is."""
        await asyncio.wait([self._end])

    async def verdict(self) -> None:
        """Waits for the end.

        Raises:
            ApiError: the refusal.
        """
        await self.ended()
        if error := self._end.result():
            raise error
