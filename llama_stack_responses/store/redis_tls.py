"""TLS to a Redis or Valkey: connections with the same settings share a context.

The `redis` package makes a context for each connection, in the event loop, and reads the authorities that the machine
trusts for it: 16 ms of a processor, for dozens of connections at once after a failover.
"""

from __future__ import annotations

import ssl
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Final, override

from redis.asyncio import ConnectionPool, SSLConnection
from redis.asyncio.connection import RedisSSLContext
from redis.exceptions import RedisError

from ..concurrency.offloading import in_thread

_FILES: Final = ("certfile", "keyfile", "ca_certs", "ca_path")


class UnreadableCertificatesError(RedisError):
    """A file that the store's address names cannot be read, or is not what it should be."""


class TlsContexts:
    """The contexts of a store's connections."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Hashable, ssl.SSLContext]] = {}

    def shared_in[Pool: ConnectionPool](self, pool: Pool) -> Pool:
        """Have the connections of a pool, which has none yet, take their context from here. Returns the pool."""
        kind = pool.connection_class
        if issubclass(kind, SSLConnection):
            pool.connection_class = type(kind.__name__, (_Sharing, kind), {"contexts": self})
        return pool

    async def of(self, settings: RedisSSLContext) -> ssl.SSLContext:
        """Return the context of these settings: a new one if a file was replaced, as certificates are before they end.

        Raises:
            UnreadableCertificatesError: it cannot be made.
        """
        key = tuple(str(getattr(settings, name)) for name in RedisSSLContext.__slots__ if name != "context")
        files = tuple(_states(settings))
        known = self._known.get(key)
        if known is None or known[0] != files:
            if None in files:
                raise UnreadableCertificatesError
            # A connection that is opened again still has the one that it had.
            settings.context = None
            try:
                known = self._known[key] = files, await in_thread(settings.get)
            except (OSError, ValueError) as error:
                raise UnreadableCertificatesError from error
        return known[1]


class _Sharing(SSLConnection):
    contexts: TlsContexts

    @override
    async def _connect(self) -> None:
        self.ssl_context.context = await self.contexts.of(self.ssl_context)
        await super()._connect()  # type: ignore[no-untyped-call]


def _states(settings: RedisSSLContext) -> Iterator[Hashable]:
    """Yield what changes when a file of these settings is replaced; None for one that is not there."""
    for name in _FILES:
        if path := getattr(settings, name):
            try:
                found = Path(path).stat()
            except OSError:
                yield None
            else:
                yield found.st_ino, found.st_mtime_ns, found.st_size
