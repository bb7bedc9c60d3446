"""Named notifications within this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from math import inf
from typing import Final

from ..intervals import DEFAULT

NAMES: Final = ""
"""The name of the notification that the set of names with subscriptions has changed."""


class Notifier:
    """Notifies the subscriptions of a name.

    A `NotificationListener` forwards the notifications of other processes, if the store has notifications.

    Args:
        fallback_poll: seconds after which a subscription's wait ends although the store forwards notifications.
    """

    def __init__(self, fallback_poll: float = DEFAULT.fallback_poll_seconds) -> None:
        self._fallback_poll = fallback_poll
        self._subscriptions: dict[str, dict[Subscription, None]] = {}  # each in the order of its begin
        self._remote: set[str] = set()

    @property
    def names(self) -> set[str]:
        """The names that have subscriptions."""
        return self._subscriptions.keys() - {NAMES}

    @contextmanager
    def subscribe(self, name: str) -> Iterator[Subscription]:
        """Subscribe to `name`.

        Notifications sent after this call are not lost: check the state after subscribing, then wait.
        """
        subscription = Subscription(name, self._remote, self._fallback_poll)
        subscriptions = self._subscriptions.setdefault(name, {})
        subscriptions[subscription] = None
        if len(subscriptions) == 1:
            self.notify(NAMES)
        try:
            yield subscription
        finally:
            del subscriptions[subscription]
            if not subscriptions:
                del self._subscriptions[name]
                self.notify(NAMES)

    def notify(self, name: str, but: AbstractSet[Subscription] = frozenset()) -> None:
        """Wake the subscriptions of `name`, except those in `but`."""
        for subscription in self._subscriptions.get(name, ()):
            if subscription not in but:
                subscription.notify()

    def notify_all(self) -> None:
        """Wake all subscriptions."""
        for name in self._subscriptions:
            if name != NAMES:
                self.notify(name)

    def notify_remote(self, name: str) -> None:
        """Wake the subscriptions of `name`, and record that the store forwards its notifications from now on.

        The first call for a name may come without a notification: the subscription to the name has begun.
        """
        self._remote.add(name)
        self.notify(name)

    def mark_lost(self, names: Collection[str]) -> None:
        """Record that the store no longer forwards notifications of these names, and wake their subscriptions."""
        self._remote.difference_update(names)
        for name in names:
            self.notify(name)


class Subscription:
    """A subscription to one name, with one waiter at a time. A notification is kept until the next wait.

    Args:
        remote: the names whose notifications the store forwards.
        fallback_poll: seconds after which a wait for one of them ends.
    """

    def __init__(self, name: str, remote: AbstractSet[str], fallback_poll: float) -> None:
        self._name = name
        self._remote = remote
        self._fallback_poll = fallback_poll
        self._notified = False
        self._waiter: asyncio.Future[None] | None = None

    def notify(self) -> None:
        """End the current wait, or the next one."""
        self._notified = True
        if self._waiter:
            _end(self._waiter)

    async def wait(self, poll: float, max_seconds: float = inf, active_at: Callable[[], float] = lambda: -inf) -> bool:
        """Wait for a notification, and return whether there was one.

        Args:
            poll: timeout in seconds while the store does not forward notifications of the name.
            max_seconds: upper bound on any timeout, in seconds.
            active_at: returns the time of the event loop from which the timeout counts, if that is after the beginning
                of the wait.
        """
        if not self._notified:
            seconds = min(self._fallback_poll if self._name in self._remote else poll, max_seconds)
            await self._wait(seconds, active_at)
        notified, self._notified = self._notified, False
        return notified

    async def _wait(self, seconds: float, active_at: Callable[[], float]) -> None:
        # Not a callback that plans itself again: it would refer to itself, a cycle for each wait.
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        while True:
            self._waiter = loop.create_future()
            timer = loop.call_at(due, _end, self._waiter)
            try:
                await self._waiter
            finally:
                self._waiter = None
                timer.cancel()
            due = active_at() + seconds
            if self._notified or due <= loop.time():
                return


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
