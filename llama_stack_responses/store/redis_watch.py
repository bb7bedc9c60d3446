"""What commits of other processes wake, heard over Redis's publish and subscribe.

A commit publishes what it wakes from within its script. A stream would keep it, write it to the disk and have to be
cut, only to tell who reads it later what the records themselves say. Each name is a channel of its own, so that a
process hears of what it waits for, and of nothing else that others write.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError

from ..core.errors import ApiError
from ..logs import get_logger
from .redis_trouble import SILENT, trouble_as_503

logger = get_logger(__name__)

_SILENCE: Final = 10.0
"""Seconds after which a server that has said nothing is asked whether it is still there."""


class RedisWatch:
    """A watch over one server.

    Args:
        redis: a client for it alone, which does not try again: what was woken meanwhile would be missed without a word.
        channels: what the names of all channels begin with.
        own: what the commits of this process publish.
        patience: seconds that one answer may take.
    """

    def __init__(self, redis: Redis, channels: str, own: str, patience: float) -> None:
        self._redis = redis
        self._pubsub = redis.pubsub()
        self._channels = channels
        self._own = own
        self._patience = patience

    async def open(self) -> None:
        """Connects, and sees that the server lets it listen: without a channel, nothing can be read.

        An operator whose server throws away what it has to keep is told so.
        """
        # A user may not be allowed to ask.
        with trouble_as_503(), suppress(NoPermissionError):
            _warn_of_eviction(await self._redis.info("memory"))
        await self.listen([self._own])
        await self.heard()

    async def close(self) -> None:
        """Hangs up."""
        with suppress(RedisError):
            await self._pubsub.aclose()  # type: ignore[no-untyped-call]
            await self._redis.aclose(close_connection_pool=True)

    async def listen(self, names: Collection[str]) -> None:
        if names:
            with trouble_as_503():
                await self._pubsub.subscribe(*map(self._channel, names))

    async def leave(self, names: Collection[str]) -> None:
        if names:
            with trouble_as_503():
                await self._pubsub.unsubscribe(*map(self._channel, names))

    async def heard(self) -> str:
        silent = False
        while True:
            with trouble_as_503():
                message = await self._pubsub.get_message(timeout=self._patience if silent else _SILENCE)
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
        """The name of which somebody else, or the server, has said something."""
        of_another = message["type"] == "message" and message["data"] != self._own.encode()
        if not (of_another or message["type"] == "subscribe"):
            return None
        channel: str = message["channel"].decode()
        return channel.removeprefix(self._channels)


def _warn_of_eviction(memory: dict[str, Any]) -> None:
    policy = memory.get("maxmemory_policy", "noeviction")
    if memory.get("maxmemory") and policy.startswith("allkeys"):
        logger.warning(
            "the response store's server will drop responses when its memory is full, since its maxmemory-policy is "
            "'%s': set it to 'noeviction'",
            policy,
        )
