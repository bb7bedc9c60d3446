"""Find out whether a commit was applied if its answer was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..core.errors import ApiError, OutcomeUnknown
from ..intervals import Intervals
from ..logs import get_logger
from .records import UNAVAILABLE, Unanswered

logger = get_logger(__name__)


class RepeatedCommit:
    """A commit that may be made several times. A try that was not answered is settled before the next one.

    Attributes:
        applied: whether a try was applied that was not answered, as far as it was settled.
    """

    def __init__(self) -> None:
        self.applied = False
        self._lost: Unanswered | None = None

    async def __call__[Result](self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of a call that makes the commit.

        Raises:
            ApiError: 503, the store does not answer: the call was not made.
        """
        if self._lost:
            self.applied |= await self._lost.settle()
            self._lost = None
        try:
            return await call()
        except Unanswered as error:
            self._lost = error
            raise


async def until_known[Result](call: Callable[[bool], Awaitable[Result]], unknown: str, intervals: Intervals) -> Result:
    """Make a change, and repeat it until the store confirms the outcome.

    Args:
        call: applies the change in one commit, its last one. Its argument is whether an earlier call has applied it:
            the call must not do so again then, since others may have changed meanwhile what it wrote.
        unknown: the error message.
        intervals: how long the store is queried after the answer was lost, and how often.

    Raises:
        OutcomeUnknown: the store did not confirm in time whether the change was applied.
    """
    commit = RepeatedCommit()
    try:
        return await commit(lambda: call(commit.applied))
    except Unanswered as error:
        logger.warning("outcome of a commit unknown, checking the store: %s", error)
        lost = error
    try:
        async with asyncio.timeout(intervals.unknown_outcome_seconds):
            while True:
                await asyncio.sleep(intervals.store_retry_seconds)
                try:
                    return await commit(lambda: call(commit.applied))
                except ApiError as error:
                    if error.status != UNAVAILABLE:
                        raise
    except TimeoutError:
        raise OutcomeUnknown(unknown) from lost
