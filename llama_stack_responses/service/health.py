"""Whether this server can make responses and keep them."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from ..core.errors import ApiError
from ..jobs.worker import Crew
from ..store.records import Records

_PATIENCE: Final = 2.0
"""Seconds that the store has for an answer. The host asks all providers, and gives up a second later."""


class Health:
    """Looks at what responses need.

    Args:
        records: has to answer.
        crew: has to be at work.
    """

    def __init__(self, records: Records, crew: Crew) -> None:
        self._records = records
        self._crew = crew

    async def report(self) -> dict[str, Any]:
        """`status`, a word of the host's, and a `message` if not all is well."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._records.get_many(["health"])
                await self._crew.check()
        except TimeoutError:
            return _ill(f"The response store did not answer within {_PATIENCE:g} seconds.")
        except ApiError as error:
            return _ill(str(error))
        return {"status": "OK"}


def _ill(message: str) -> dict[str, Any]:
    return {"status": "Error", "message": message}
