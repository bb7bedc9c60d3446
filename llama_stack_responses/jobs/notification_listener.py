"""The subscription to the store's notifications."""

from __future__ import annotations

import asyncio
from math import inf

from ..core.errors import ApiError
from ..intervals import DEFAULT, Intervals
from ..logs import get_logger
from ..store.records import PubSub, Records
from .notifier import NAMES, Notifier

logger = get_logger(__name__)


class NotificationListener:
    """Subscribes to the store's notifications and forwards them to this process's notifier.

    Without a subscription, and on a store that has no notifications, waiting tasks poll.

    Args:
        records: the store.
        notifier: this process's notifier; its names are subscribed to.
    """

    def __init__(self, records: Records, notifier: Notifier, intervals: Intervals = DEFAULT) -> None:
        self._intervals = intervals
        self._records = records
        self._notifier = notifier
        self._requested: set[str] = set()
        self._lost = False

    async def run(self) -> None:
        """Keep the subscription, and subscribe again when the connection is lost.

        Return at once if the store has no notifications.
        """
        while (opening := self._records.pubsub()) is not None:
            try:
                async with opening as pubsub, asyncio.TaskGroup() as both:
                    both.create_task(self._subscribe(pubsub))
                    both.create_task(self._receive(pubsub))
            except* ApiError as errors:
                if not self._lost:
                    logger.warning("store notifications lost, falling back to polling: %s", errors.exceptions[0])
                self._lost = True
            except* Exception:
                logger.exception("store notifications lost, falling back to polling")
                self._lost = True
            finally:
                self._notifier.mark_lost(sorted(self._requested))
                self._requested = set()
            await asyncio.sleep(self._intervals.reconnect_seconds)

    async def _subscribe(self, pubsub: PubSub) -> None:
        with self._notifier.subscribe(NAMES) as changes:
            while True:
                names = self._notifier.names
                gone = sorted(self._requested - names)
                self._notifier.mark_lost(gone)
                await pubsub.unsubscribe(gone)
                new = sorted(names - self._requested)
                self._requested = names
                await pubsub.subscribe(new)
                if self._lost:
                    logger.info("store notifications restored")
                    self._lost = False
                await changes.wait(inf)
                await asyncio.sleep(self._intervals.subscribe_delay_seconds)

    async def _receive(self, pubsub: PubSub) -> None:
        while True:
            self._notifier.notify_remote(await pubsub.receive())
