"""Notifications between processes over PostgreSQL's LISTEN and NOTIFY.

A notification is not part of the commit: NOTIFY holds a server-wide lock until the commit is on the disk, so commits
that notify could not share a disk write. A transaction that only notifies does not wait for the disk. It follows right
after the commit. If the process dies in between, the notification is lost and waiters find the change by polling.

Each name has its own channel, so a process receives only the notifications that it listens for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

import asyncpg

from ..concurrency.tasks import LoopTask
from ..core.errors import ApiError
from .postgres_errors import errors_as_503

PUBSUB_SILENCE_SECONDS: Final = 10.0
"""Seconds without a notification after which the connection checks that it still receives them."""

_PAUSE_SECONDS: Final = 0.01
"""Seconds between two NOTIFY statements; names that arrive meanwhile share one statement."""

_CLOSE_SECONDS: Final = 1.0
"""Seconds that the server has to close the connection; nothing is lost if it does not."""

_NO_NOTIFICATIONS: Final = (
    "Notifications do not arrive: a connection pooler may share connections between transactions."
)

NOTIFY: Final = "SELECT pg_notify(channel, $2) FROM unnest($1::text[]) AS channel"
"""Parameters: the channels, and the id of the sender."""


def channel(schema: str, name: str) -> str:
    """Return the channel of a name, hashed because the server allows at most 63 characters."""
    return f"w{blake2b(f'{schema}/{name}'.encode(), digest_size=16).hexdigest()}"


class NotificationSender:
    """Notifies other processes, one statement at a time.

    Args:
        notify: runs `NOTIFY` for some names.
    """

    def __init__(self, notify: Callable[[Sequence[str]], Awaitable[object]]) -> None:
        self._notify = notify
        self._due: dict[str, None] = {}
        self._sending = LoopTask(self._send)
        self._closing = False

    def send(self, names: Sequence[str]) -> None:
        """Notify the names soon, in the background; do nothing while `close` waits."""
        if names and not self._closing:
            self._due |= dict.fromkeys(names)
            self._sending.start()

    async def close(self) -> None:
        """Wait until all pending notifications are sent or have failed. Later ones are dropped, so the wait ends."""
        self._closing = True
        try:
            await self._sending.wait()
        finally:
            self._closing = False

    async def _send(self) -> None:
        while self._due:
            names, self._due = list(self._due), {}
            with suppress(ApiError):  # waiters poll anyway
                await self._notify(names)
            await asyncio.sleep(_PAUSE_SECONDS)


class PostgresPubSub:
    """Receives the notifications of one schema.

    Args:
        connection: a connection for these subscriptions alone.
        schema: the schema's name.
        own: the sender id of this process.
        notify: runs `NOTIFY` for some names, as commits do.
        timeout: maximum seconds for a notification to arrive.
    """

    def __init__(
        self,
        connection: asyncpg.Connection,
        schema: str,
        own: str,
        notify: Callable[[Sequence[str]], Awaitable[object]],
        timeout: float,
        silence: float = PUBSUB_SILENCE_SECONDS,
    ) -> None:
        self._silence = silence
        self._connection = connection
        self._schema = schema
        self._own = own
        self._notify = notify
        self._timeout = timeout
        self._names: dict[str, str] = {}  # by channel
        self._due: dict[str, None] = {}
        self._woken = asyncio.Event()
        self._echoed = False
        connection.add_termination_listener(self._wake)

    async def open(self) -> None:
        """Check that notifications arrive.

        Raises:
            ApiError: 503, they do not.
        """
        with errors_as_503():
            await self._connection.add_listener(channel(self._schema, self._own), self._echo)
        await self._check()

    async def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            await self._connection.close(timeout=_CLOSE_SECONDS)

    async def subscribe(self, names: Collection[str]) -> None:
        for name in names:
            where = channel(self._schema, name)
            self._names[where] = name
            with errors_as_503():
                await self._connection.add_listener(where, self._on_notification)
            self._put(name)

    async def unsubscribe(self, names: Collection[str]) -> None:
        for name in names:
            where = channel(self._schema, name)
            with errors_as_503():
                await self._connection.remove_listener(where, self._on_notification)
            del self._names[where]

    async def receive(self) -> str:
        while not self._due:
            if not await self._arrives_within(self._silence):
                await self._check()
        name = next(iter(self._due))
        del self._due[name]
        return name

    async def _check(self) -> None:
        """Send a notification to this process and wait until it, or another one, arrives."""
        self._echoed = False
        await self._notify([self._own])
        while not (self._echoed or self._due):
            if not await self._arrives_within(self._timeout):
                raise ApiError(503, _NO_NOTIFICATIONS)

    async def _arrives_within(self, seconds: float) -> bool:
        """Return whether something arrives in that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        woken = self._woken.is_set()
        self._woken.clear()
        if self._connection.is_closed():
            raise ApiError(503, "The response store's server closed the connection.", retry_after=1)
        return woken

    def _put(self, name: str) -> None:
        self._due[name] = None
        self._woken.set()

    def _on_notification(self, _connection: object, _pid: int, where: str, sender: Any) -> None:
        name = self._names.get(where)
        if name is not None and sender != self._own:
            self._put(name)

    def _echo(self, *_: object) -> None:
        self._echoed = True
        self._woken.set()

    def _wake(self, _connection: object) -> None:
        self._woken.set()
