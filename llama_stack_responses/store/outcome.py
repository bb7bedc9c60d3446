"""Finds out what came of a commit whose answer was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ..core.errors import ApiError, OutcomeUnknown
from ..logs import get_logger
from .records import AWAY, Unanswered

logger = get_logger(__name__)

PATIENCE: Final = 15.0
"""Seconds for which the store is asked what came of a commit. They begin when the answer is lost."""

_RETRY: Final = 1.0
"""Seconds between two tries."""


async def certain[Result](call: Callable[[bool], Awaitable[Result]], unknown: str) -> Result:
    """Makes a change, and makes it again until the store says what came of it.

    Args:
        call: makes the change. Its argument says whether an earlier call may have made it: then the call has to find
            that out, and must not make it twice.
        unknown: the sentence of the error.

    Raises:
        OutcomeUnknown: the store did not say in time whether it made the change.
    """
    try:
        return await call(False)
    except Unanswered as error:
        logger.warning("a commit of which the store did not say whether it was made is looked for: %s", error)
        lost = error
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                await asyncio.sleep(_RETRY)
                try:
                    return await call(True)
                except ApiError as error:
                    if error.status != AWAY:
                        raise
    except TimeoutError:
        raise OutcomeUnknown(unknown) from lost
