"""Notifications of other processes over Redis publish/subscribe.

A commit publishes its notifications from within its script. A Redis stream would store them on disk and need trimming,
only to repeat what the records already hold. Each name has its own channel, so a process receives only the
notifications that it subscribed to.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from ..core.errors import ApiError
from .redis_errors import SILENT, errors_as_503

PUBSUB_SILENCE_SECONDS: Final = 10.0
"""Seconds of silence after which the server is pinged."""


class RedisPubSub:
    """Receives the notifications of one server.

    Args:
        redis: a client for these subscriptions alone, without retries: a silent reconnect would lose notifications.
        channels: the prefix of all channels.
        own: the sender id that the commits of this process publish.
        timeout: maximum seconds for one answer.
    """

    def __init__(
        self, redis: Redis, channels: str, own: str, timeout: float, silence: float = PUBSUB_SILENCE_SECONDS
    ) -> None:
        self._silence = silence
        self._redis = redis
        self._pubsub = redis.pubsub()
        self._channels = channels
        self._own = own
        self._timeout = timeout

    async def open(self) -> None:
        """Connect, and check that the server permits subscriptions; without a channel, nothing can be read."""
        await self.subscribe([self._own])
        await self.receive()

    async def close(self) -> None:
        """Close the connection."""
        with suppress(RedisError):
            try:
                await self._pubsub.aclose()  # type: ignore[no-untyped-call]
            finally:
                await self._redis.aclose(close_connection_pool=True)

    async def subscribe(self, names: Collection[str]) -> None:
        if names:
            with errors_as_503():
                await self._pubsub.subscribe(*map(self._channel, names))

    async def unsubscribe(self, names: Collection[str]) -> None:
        if names:
            with errors_as_503():
                await self._pubsub.unsubscribe(*map(self._channel, names))

    async def receive(self) -> str:
        silent = False
        while True:
            with errors_as_503():
                message = await self._pubsub.get_message(timeout=self._timeout if silent else self._silence)
                if message is None and not silent:
                    await self._pubsub.ping()
            if message is None and silent:
                raise ApiError(503, SILENT, retry_after=1)
            silent = message is None
            if message and (name := self._name(message)):
                return name

    def _channel(self, name: str) -> str:
        return f"{self._channels}{name}"

    def _name(self, message: dict[str, Any]) -> str | None:
        """Return the name for which another process, or the server's confirmation, sent a message."""
        of_another = message["type"] == "message" and message["data"] != self._own.encode()
        if not (of_another or message["type"] == "subscribe"):
            return None
        channel: str = message["channel"].decode()
        return channel.removeprefix(self._channels)
