"""What commits wake in other processes, over PostgreSQL's LISTEN and NOTIFY.

Not in the commit itself: whoever notifies holds a lock of the whole server until the commit is on the disk, so that
such commits could not share one write to it. A transaction that does nothing else waits for no disk. It comes a moment
after the commit; should the process die in between, those who wait look by themselves, later.

Each name is a channel of its own, so that a process hears of what it waits for, and of nothing else that others write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

import asyncpg

from ..core.errors import ApiError
from .postgres_trouble import trouble_as_503

_SILENCE: Final = 10.0
"""Seconds after which a process that heard nothing finds out whether it still would."""

_PAUSE: Final = 0.01
"""Seconds between two statements that wake: what comes meanwhile goes into one."""

_FAREWELL: Final = 1.0
"""Seconds in which a server has to let the connection end: nothing is lost with it."""

_DEAF: Final = "Notifications do not come through, as behind a pooler that shares connections between transactions."

NOTIFY: Final = "SELECT pg_notify(channel, $2) FROM unnest($1::text[]) AS channel"
"""Takes the channels, and who notifies."""


def channel(schema: str, name: str) -> str:
    """The channel of a name: short enough for the server, which knows no longer ones than 63 characters."""
    return f"w{blake2b(f'{schema}/{name}'.encode(), digest_size=16).hexdigest()}"


class Waker:
    """Notifies other processes, by one statement at a time.

    Args:
        notify: runs `NOTIFY` for some names.
    """

    def __init__(self, notify: Callable[[Sequence[str]], Awaitable[object]]) -> None:
        self._notify = notify
        self._due: dict[str, None] = {}
        self._sending: asyncio.Task[None] | None = None

    def wake(self, names: Sequence[str]) -> None:
        """Has the names woken soon."""
        if names:
            self._due |= dict.fromkeys(names)
            if self._sending is None or self._sending.done() or _of_another_loop(self._sending):
                self._sending = asyncio.create_task(self._send())

    async def close(self) -> None:
        """Waits until those that are due are woken, or cannot be."""
        if self._sending and not _of_another_loop(self._sending):
            await asyncio.wait([self._sending])

    async def _send(self) -> None:
        while self._due:
            names, self._due = list(self._due), {}
            with suppress(ApiError):  # those who wait look by themselves, later
                await self._notify(names)
            await asyncio.sleep(_PAUSE)


def _of_another_loop(task: asyncio.Task[None]) -> bool:
    return task.get_loop() is not asyncio.get_running_loop()


class PostgresWatch:
    """A watch over one schema.

    Args:
        connection: for it alone.
        schema: the schema's name.
        own: how this process notifies.
        notify: runs `NOTIFY` for some names, as commits do.
        patience: seconds that a notification may take.
    """

    def __init__(
        self,
        connection: asyncpg.Connection,
        schema: str,
        own: str,
        notify: Callable[[Sequence[str]], Awaitable[object]],
        patience: float,
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._own = own
        self._notify = notify
        self._patience = patience
        self._names: dict[str, str] = {}  # by their channels
        self._due: dict[str, None] = {}
        self._stirred = asyncio.Event()
        self._echoed = False
        connection.add_termination_listener(self._stir)

    async def open(self) -> None:
        """Sees that what is notified comes through.

        Raises:
            ApiError: 503, it does not.
        """
        with trouble_as_503():
            await self._connection.add_listener(channel(self._schema, self._own), self._echo)
        await self._check()

    async def close(self) -> None:
        """Hangs up."""
        with suppress(Exception):
            await self._connection.close(timeout=_FAREWELL)

    async def listen(self, names: Collection[str]) -> None:
        for name in names:
            where = channel(self._schema, name)
            self._names[where] = name
            with trouble_as_503():
                await self._connection.add_listener(where, self._hear)
            self._put(name)

    async def leave(self, names: Collection[str]) -> None:
        for name in names:
            where = channel(self._schema, name)
            with trouble_as_503():
                await self._connection.remove_listener(where, self._hear)
            del self._names[where]

    async def heard(self) -> str:
        while not self._due:
            if not await self._stirs(_SILENCE):
                await self._check()
        name = next(iter(self._due))
        del self._due[name]
        return name

    async def _check(self) -> None:
        """Notifies itself."""
        self._echoed = False
        await self._notify([self._own])
        while not (self._echoed or self._due):
            if not await self._stirs(self._patience):
                raise ApiError(503, _DEAF)

    async def _stirs(self, seconds: float) -> bool:
        """Whether something comes in that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
        stirred = self._stirred.is_set()
        self._stirred.clear()
        if self._connection.is_closed():
            raise ApiError(503, "The response store's server has hung up.", retry_after=1)
        return stirred

    def _put(self, name: str) -> None:
        self._due[name] = None
        self._stirred.set()

    def _hear(self, _connection: object, _pid: int, where: str, sender: Any) -> None:
        name = self._names.get(where)
        if name is not None and sender != self._own:
            self._put(name)

    def _echo(self, *_: object) -> None:
        self._echoed = True
        self._stirred.set()

    def _stir(self, _connection: object) -> None:
        self._stirred.set()
