"""Repeats the calls of a job while the store is unavailable: a job must not be lost while its worker is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..core.errors import ApiError
from ..logs import Outage, get_logger
from ..store.commit_outcome import RepeatedCommit
from ..store.records import UNAVAILABLE

logger = get_logger(__name__)


class StoreRetry:
    """Repeats calls until they succeed.

    Args:
        seconds: interval between two calls.

    Attributes:
        given_up: whether the next error is raised.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._outage = seconds, Outage()
        self.given_up = False

    async def __call__[Result](self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of the call, which is repeated while the store is unavailable."""
        commit = RepeatedCommit()
        while True:
            try:
                result = await commit(call)
            except ApiError as error:
                if error.status != UNAVAILABLE or self.given_up:
                    raise
                if self._outage.should_log(error):
                    logger.warning("response store unavailable, retrying: %s", error)
                await asyncio.sleep(self._seconds)
            else:
                self._outage.over()
                return result
