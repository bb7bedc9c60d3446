"""Limits on background responses that wait or run: a row of each is in the store until it has ended.

The row `uj/<hash of the limit and of whom it counts>/<response>` is written in the commit that creates the response,
and deleted in the one that stores its end, by whichever server.
"""

from __future__ import annotations

from typing import Final

from ....core.errors import ApiError
from ....jobs.row_quota import AdmittedRow, RowQuota
from ....store.content_names import row_key
from ....store.records import Records
from ..settings import Limit

PREFIX: Final = "uj/"
KEPT_SECONDS: Final = 7 * 86_400.0
"""Seconds after which a row counts no longer, if another limit had been configured when its response ended."""
_RETRY_AFTER_SECONDS: Final = 10


class BackgroundRows:
    """Admits background responses.

    Args:
        records: the store.
    """

    def __init__(self, records: Records) -> None:
        self._quota = RowQuota(records)

    async def take(self, limit: Limit, name: str) -> AdmittedRow | None:
        """Admit one more background response of `name`, whom the limit counts; return None if the limit is reached.

        Raises:
            ApiError: 503, the store does not answer.
        """
        assert limit.background is not None
        return await self._quota.take(prefix_of(limit, name), limit.background)


def prefix_of(limit: Limit, name: str) -> str:
    """Return the prefix of the rows of a limit."""
    return f"{row_key(PREFIX, f'{limit.identity} {name}')}/"


def refusal(limit: Limit) -> ApiError:
    """Return the error of a request that is refused."""
    message = f"Too many background responses of {limit.whose} wait or run: limit {limit.background}. Try again later."
    return ApiError(429, message, type="requests", code="rate_limit_exceeded", retry_after=_RETRY_AFTER_SECONDS)
