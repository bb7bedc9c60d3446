"""Hears what other processes on the store ring for, and rings for it here."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final

from ..core.errors import ApiError
from ..logs import get_logger
from ..store.records import Records, Watch
from .notifier import NAMES, Bell

logger = get_logger(__name__)

_AGAIN: Final = 2.0
"""Seconds between two tries to hear the others."""

_MOMENT: Final = 0.05
"""Seconds for which somebody listens before the others are asked to ring for them: most waits are over by then."""


class Lookout:
    """Keeps a watch over the store for whatever somebody listens for in this process.

    While there is none, and on a store that has none, those who wait look by themselves, and often.

    Args:
        records: the store.
        bell: rings in this process.
    """

    def __init__(self, records: Records, bell: Bell) -> None:
        self._records = records
        self._bell = bell
        self._asked: set[str] = set()

    async def run(self) -> None:
        """Listens for as long as the store has something to tell, over whatever happens to the connection."""
        deaf = False
        while (watching := self._records.watch()) is not None:
            try:
                async with watching as watch, asyncio.TaskGroup() as both:
                    both.create_task(self._ask(watch))
                    both.create_task(self._hear(watch))
                    if deaf:
                        logger.info("other servers' work is heard of again")
                    deaf = False
            except* ApiError as errors:
                if not deaf:
                    logger.warning("other servers' work is looked for and not heard of: %s", errors.exceptions[0])
                deaf = True
            except* Exception:
                logger.exception("other servers' work is not heard of")
                deaf = True
            finally:
                self._bell.cut_off(self._asked)
                self._asked = set()
            await asyncio.sleep(_AGAIN)

    async def _ask(self, watch: Watch) -> None:
        with self._bell.listen(NAMES) as changes:
            while True:
                names = self._bell.names
                gone = self._asked - names
                self._bell.cut_off(gone)
                await watch.leave(gone)
                new = names - self._asked
                self._asked = names
                await watch.listen(new)
                await changes.wait(inf)
                await asyncio.sleep(_MOMENT)

    async def _hear(self, watch: Watch) -> None:
        while True:
            self._bell.ring_from_outside(await watch.heard())
