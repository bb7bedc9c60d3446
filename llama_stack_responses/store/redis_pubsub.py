"""Notifications of other processes over Redis publish/subscribe.

A commit publishes its notifications from within its script. A Redis stream would store them on disk and need trimming,
only to repeat what the records already hold. Each name has its own channel, so a process receives only the
notifications that it subscribed to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from ..core.errors import ApiError
from .records import SILENT, PubSub
from .redis_errors import MOVING, errors_as_503
from .redis_sentinel import primary_of

PUBSUB_SILENCE_SECONDS: Final = 10.0
"""Seconds of silence after which the server is pinged."""
_LOOK_SECONDS: Final = 1.0
"""Interval of looks whether another server is the primary: one that hangs does not say so."""

_CHANNELS: Final = "}:w:"
"""What ends the prefix of a partition's channels, behind the hash tag."""

_OF_SLOT: Final = frozenset({"smessage", "ssubscribe", "sunsubscribe"})
"""Messages of a slot's channels, which are called as those of other channels with an `s` before."""


class RedisPubSub:
    """Receives the notifications of one server; in a cluster, those of as many of its partitions as join it.

    Args:
        redis: a client for these subscriptions alone, without retries: a silent reconnect would lose notifications.
        channels: the prefix of all channels.
        own: the sender id that the commits of this process publish.
        timeout: maximum seconds for one answer.
        sharded: whether the channels are those of a slot of a cluster.
        address: returns the address of the primary with the records, as calls know it: empty if they do not. None for
            a server that is always the same.
    """

    def __init__(
        self,
        redis: Redis,
        channels: str,
        own: str,
        timeout: float,
        silence: float = PUBSUB_SILENCE_SECONDS,
        *,
        sharded: bool,
        address: Callable[[], str] | None,
    ) -> None:
        self._silence = silence
        self._address, self._known = address, address() if address else ""
        self._redis = redis
        self._pubsub = redis.pubsub()
        self._channels = channels
        self._own = {channels: own}
        self._timeout = timeout
        self._sharded = sharded
        self._opened = False

    async def open(self) -> None:
        """Connect, and check that the server permits subscriptions; without a channel, nothing can be read."""
        await self.subscribe([self._own[self._channels]])
        await self.receive()
        self._known = self._known or primary_of(self._redis)
        self._opened = True

    async def joined(self, channels: str, own: str) -> PubSub:
        """Receive the notifications of another partition of the server too, and return what subscribes to them.

        Args:
            channels: the prefix of its channels.
            own: the sender id of its commits.
        """
        self._own[channels] = own
        joined = _Joined(self, channels)
        await joined.subscribe([own])
        return joined

    async def close(self) -> None:
        """Close the connection."""
        with suppress(RedisError):
            try:
                await self._pubsub.aclose()  # type: ignore[no-untyped-call]
            finally:
                await self._redis.aclose(close_connection_pool=True)

    async def subscribe(self, names: Collection[str]) -> None:
        await self.subscribe_in(self._channels, names)

    async def subscribe_in(self, channels: str, names: Collection[str]) -> None:
        """Subscribe to names of one partition, given the prefix of its channels."""
        if names:
            with errors_as_503():
                subscribe = self._pubsub.ssubscribe if self._sharded else self._pubsub.subscribe
                await subscribe(*(f"{channels}{name}" for name in names))

    async def unsubscribe(self, names: Collection[str]) -> None:
        await self.unsubscribe_in(self._channels, names)

    async def unsubscribe_in(self, channels: str, names: Collection[str]) -> None:
        """Unsubscribe from names of one partition, as `subscribe_in`."""
        if names:
            with errors_as_503():
                unsubscribe = self._pubsub.sunsubscribe if self._sharded else self._pubsub.unsubscribe
                await unsubscribe(*(f"{channels}{name}" for name in names))

    async def receive(self) -> str:
        loop = asyncio.get_running_loop()
        pinged, due = False, loop.time() + self._silence
        while True:
            wait = min(due - loop.time(), _LOOK_SECONDS if self._address else inf)
            with errors_as_503():
                message = await self._pubsub.get_message(timeout=max(wait, 0.0))
            if message:
                if name := self._name(message):
                    return name
                pinged, due = False, loop.time() + self._silence
                continue
            if self._known and self._address and self._address() not in ("", self._known):
                raise ApiError(503, MOVING if self._sharded else SILENT, retry_after=1)
            if loop.time() < due:
                continue
            if pinged:
                raise ApiError(503, SILENT, retry_after=1)
            with errors_as_503():
                await self._pubsub.ping()
            pinged, due = True, loop.time() + self._timeout

    def _name(self, message: dict[str, Any]) -> str | None:
        """Return the name for which another process, or the server's confirmation, sent a message."""
        kind = message["type"].removeprefix("s") if message["type"] in _OF_SLOT else message["type"]
        if kind not in ("message", "subscribe", "unsubscribe"):
            return None
        channel: str = message["channel"].decode()
        channels = channel[: channel.find(_CHANNELS) + len(_CHANNELS)] if self._sharded else self._channels
        name, own = channel.removeprefix(channels), self._own[channels]
        if kind == "unsubscribe" and name == own:
            # Only a cluster ends this subscription: another node has the slot now.
            raise ApiError(503, MOVING, retry_after=1)
        if kind == "unsubscribe" or (kind == "message" and message["data"] == own.encode()):
            return None
        return None if name == own and self._opened else name


class _Joined:
    """The notifications of a further partition, over a connection that it shares."""

    def __init__(self, connection: RedisPubSub, channels: str) -> None:
        self._connection, self._channels = connection, channels

    async def subscribe(self, names: Collection[str]) -> None:
        await self._connection.subscribe_in(self._channels, names)

    async def unsubscribe(self, names: Collection[str]) -> None:
        await self._connection.unsubscribe_in(self._channels, names)

    async def receive(self) -> str:
        return await self._connection.receive()
