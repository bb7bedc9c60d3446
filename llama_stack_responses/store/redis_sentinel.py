"""Connections to the primary of a Redis or Valkey that Sentinels watch.

`redis+sentinel://USER@SENTINEL:PORT,SENTINEL:PORT/SERVICE/DATABASE`; with TLS `rediss+sentinel://`. The `redis` package
asks the Sentinels for the primary at each new connection, and leaves one that has become a replica.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool, Redis, Sentinel
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff

_SUFFIX: Final = "+sentinel"
_PORT: Final = 26379


def is_sentinel(url: str) -> bool:
    """Whether the URL names Sentinels."""
    return urlsplit(url).scheme.endswith(_SUFFIX)


class _Pool(SentinelConnectionPool):
    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        for pool in pools_of_sentinels(self):
            await pool.disconnect(inuse_connections)


def sentinel_pool(url: str, sentinel_password: str | None, **settings: Any) -> ConnectionPool:
    """Return connections to the primary that the Sentinels name.

    Args:
        url: as above.
        sentinel_password: the password of the Sentinels, if they need one.
        settings: settings of each connection, and of the pool, unless the URL has others.
    """
    parts = urlsplit(url)
    user, _, nodes = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    scheme = parts.scheme.removesuffix(_SUFFIX)
    of_primary = f"{scheme}://{user}{'@' if user else ''}primary/{database or 0}?{parts.query}"
    known: dict[str, Any] = {**settings, **parse_url(of_primary)}
    for name in ("host", "port", "connection_class"):
        known.pop(name, None)
    # The pool tries again as a whole; of its own, the `redis` package would try each Sentinel again for seconds.
    once: dict[str, Any] = {"retry": Retry(NoBackoff(), 0)}
    timeouts = {name: value for name, value in known.items() if name.startswith("socket_")}
    secret = {"password": sentinel_password} if sentinel_password else {}
    tls = {name: value for name, value in known.items() if name.startswith("ssl_")} if scheme == "rediss" else {}
    encrypted = {"ssl": True, **tls} if scheme == "rediss" else {}
    watchers = [_address(each) for each in nodes.split(",")]
    sentinel = Sentinel(watchers, sentinel_kwargs=once | timeouts | secret | encrypted)  # type: ignore[no-untyped-call]
    of_pool = {"ssl": True} if encrypted else {}
    return _Pool(service, sentinel, **known, **of_pool)  # type: ignore[no-untyped-call]


def pools_of_sentinels(pool: ConnectionPool) -> list[ConnectionPool]:
    """Return the connections to the Sentinels themselves, of what `sentinel_pool` has returned."""
    assert isinstance(pool, SentinelConnectionPool)
    return [client.connection_pool for client in pool.sentinel_manager.sentinels]


def primary_of(redis: Redis) -> str:
    """Return the address of the primary that Sentinels have named to this client last; empty if none have."""
    primary = getattr(redis.connection_pool, "master_address", None)
    return f"{primary}" if primary else ""


def _address(node: str) -> tuple[str, int]:
    parts = urlsplit(f"//{node}")
    return parts.hostname or "", parts.port or _PORT
