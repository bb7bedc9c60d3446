"""The connections of a store to its Redis or Valkey, in one event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, override
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Connection, ConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from .commit_deadline import CommitDeadline
from .connection_slots import ConnectionSlots
from .redis_errors import errors_as_503
from .redis_packing import packed_by_hiredis
from .redis_sentinel import is_sentinel, pools_of_sentinels, primary_of, sentinel_pool
from .redis_tls import TlsContexts

MAX_RETRIES: Final = 8
BACKOFF: Final = ExponentialWithJitterBackoff(cap=0.8, base=0.02)
"""With so many retries, a server may be unreachable for about three seconds before a call fails."""

_OF_POOLS: Final = frozenset({"max_connections", "timeout"})
"""Settings in a URL's query that are not for each connection."""

type Command[Result] = Callable[[Redis], Awaitable[Result]]
"""A call to the server of a client."""


class Access(NamedTuple):
    """Where the servers are, and how to connect to them.

    Attributes:
        timeout: maximum seconds for connecting, and for one answer.
    """

    url: str
    password: str | None
    sentinel_password: str | None
    timeout: float

    @property
    def settings(self) -> dict[str, Any]:
        """What holds for each connection, beyond what the URL says."""
        known = {"password": self.password} if self.password else {}
        return {**known, "socket_timeout": self.timeout, "socket_connect_timeout": self.timeout}


class Connections(ABC):
    """The connections of one event loop to the servers of a store.

    Args:
        connections: how many calls are under way at a time.

    Attributes:
        loop: the event loop.
        closing: the task that closes them; None until `LoopConnections.close`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, access: Access, connections: int) -> None:
        self.loop = loop
        self.closing: asyncio.Task[None] | None = None
        self._slots = ConnectionSlots(connections, access.timeout)
        self._tls = TlsContexts()

    def _prepared[Pool: ConnectionPool](self, pool: Pool) -> Pool:
        """Keep the event loop free of slow work of the connections of a pool, which has none yet. Returns the pool."""
        return self._tls.shared_in(packed_by_hiredis(pool))

    async def call[Result](self, key: str, command: Command[Result]) -> Result:
        """Call the server that holds `key`, as soon as a connection is free.

        Raises:
            ApiError: 503, the server refused the call or did not answer it.
        """
        async with self._slots.taken():
            with errors_as_503():
                return await self._call(key, command)

    @abstractmethod
    async def _call[Result](self, key: str, command: Command[Result]) -> Result:
        """Call the server that holds `key`; call it again if it cannot be reached.

        Raises:
            RedisError: it refused the call or did not answer it.
        """

    @abstractmethod
    async def listener(self, key: str) -> Redis:
        """Return a client for subscriptions at the server that holds `key`: no call of it is repeated.

        Raises:
            ApiError: 503, no server says which one that is.
        """

    @abstractmethod
    async def address(self, key: str) -> str:
        """Return the address of the server that holds `key`.

        Raises:
            ApiError: 503, no server says which one that is.
        """

    @abstractmethod
    def known_address(self, key: str) -> str:
        """Return the address of the server that has `key`, without asking; empty if that is not known now."""

    async def close(self) -> None:
        """Let waiting calls fail, wait until the others have ended, and disconnect."""
        # A connection that is closed during a call would be opened again for the call's next try.
        try:
            await self._slots.close()
        finally:
            with suppress(RedisError):
                await self._disconnect()

    @abstractmethod
    async def _disconnect(self) -> None:
        """Close all connections."""


class ServerConnections(Connections):
    """Connections to one server, or to the primary that Sentinels name."""

    def __init__(self, loop: asyncio.AbstractEventLoop, access: Access, connections: int) -> None:
        super().__init__(loop, access, connections)
        self._access = access
        # No retry after a timeout: the caller has waited long enough.
        retry = Retry(BACKOFF, MAX_RETRIES, (RedisConnectionError,))
        self._redis = Redis(connection_pool=self._pool(max_connections=connections, retry=retry))

    @override
    async def _call[Result](self, key: str, command: Command[Result]) -> Result:
        return await command(self._redis)

    @override
    async def listener(self, key: str) -> Redis:
        return Redis.from_pool(self._pool(retry=Retry(NoBackoff(), 0)))

    @override
    async def address(self, key: str) -> str:
        return self._access.url

    @override
    def known_address(self, key: str) -> str:
        return primary_of(self._redis) if is_sentinel(self._access.url) else self._access.url

    async def _disconnect(self) -> None:
        await self._redis.aclose(close_connection_pool=True)

    def _pool(self, **settings: Any) -> ConnectionPool:
        access = self._access
        settings |= access.settings
        if is_sentinel(access.url):
            pool = sentinel_pool(access.url, access.sentinel_password, **settings)
            for each in pools_of_sentinels(pool):
                self._prepared(each)
            return self._prepared(pool)
        return self._prepared(BlockingConnectionPool.from_url(access.url, timeout=access.timeout, **settings))


def check_settings(url: str) -> None:
    """Check the settings in the query of a store's URL. Nothing is opened, and no file is read.

    Raises:
        ValueError: the `redis` package has no such setting, or not with this value; the text says which.
    """
    parts = urlsplit(url)
    settings: dict[str, Any] = {**parse_url(f"{parts.scheme.partition('+')[0]}://node/?{parts.query}")}
    kind: Callable[..., object] = settings.pop("connection_class", Connection)
    for name, value in settings.items():
        try:
            if name not in _OF_POOLS:
                kind(**{name: value})
        except (TypeError, AttributeError, RedisError) as error:
            raise ValueError(f"the package redis does not take the setting '{name}', or not this value") from error


class LoopConnections:
    """The connections of a store, anew in each event loop that uses it.

    Args:
        kind: opens them.
        connections: as of `Connections`.

    Attributes:
        clocks: what is known of the clocks of servers, by their addresses.
    """

    def __init__(
        self,
        kind: Callable[[asyncio.AbstractEventLoop, Access, int], Connections],
        access: Access,
        connections: int,
    ) -> None:
        self._kind, self._access, self._most = kind, access, connections
        self._connections: Connections | None = None
        self.clocks: dict[str, CommitDeadline] = {}

    def ready(self) -> Connections:
        """Return the connections of the running loop; those of another, closed loop would never answer."""
        loop = asyncio.get_running_loop()
        if self._connections is None or self._connections.loop is not loop:
            self._connections = self._kind(loop, self._access, self._most)
        return self._connections

    async def close(self) -> None:
        """Close those of the running loop, if there are any."""
        connections = self._connections
        if connections is None or connections.loop is not asyncio.get_running_loop():
            self._connections = None
            return
        if connections.closing is None:
            connections.closing = asyncio.create_task(self._close(connections))
        # If the caller is cancelled, the connections are closed all the same, once their calls have ended.
        await asyncio.shield(connections.closing)

    async def _close(self, connections: Connections) -> None:
        try:
            await connections.close()
        finally:
            # They stay until then, so that a task that still works with the store opens no further connections.
            if self._connections is connections:
                self._connections = None
