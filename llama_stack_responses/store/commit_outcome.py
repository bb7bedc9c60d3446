"""Find out whether a commit was applied if its answer was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..core.errors import ApiError, OutcomeUnknown
from ..intervals import Intervals
from ..logs import get_logger
from .records import UNAVAILABLE, Unanswered

logger = get_logger(__name__)


async def until_known[Result](call: Callable[[bool], Awaitable[Result]], unknown: str, intervals: Intervals) -> Result:
    """Make a change, and repeat it until the store confirms the outcome.

    Args:
        call: applies the change. Its argument is whether an earlier call may have applied it; the call then has to
            check that, and must not apply it twice.
        unknown: the error message.
        intervals: how long the store is queried after the answer was lost, and how often.

    Raises:
        OutcomeUnknown: the store did not confirm in time whether the change was applied.
    """
    try:
        return await call(False)
    except Unanswered as error:
        logger.warning("outcome of a commit unknown, checking the store: %s", error)
        lost = error
    unsettled = [lost]
    try:
        async with asyncio.timeout(intervals.unknown_outcome_seconds):
            while True:
                await asyncio.sleep(intervals.store_retry_seconds)
                try:
                    while unsettled:
                        await unsettled[-1].settle()
                        unsettled.pop()
                    return await call(True)
                except Unanswered as error:
                    unsettled.append(error)
                except ApiError as error:
                    if error.status != UNAVAILABLE:
                        raise
    except TimeoutError:
        raise OutcomeUnknown(unknown) from lost
