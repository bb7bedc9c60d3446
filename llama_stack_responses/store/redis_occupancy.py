"""How much the rows of a store, or of a partition of one, take in a Redis or Valkey: estimated from a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from .records import Occupancy

_SAMPLE: Final = 100
"""Rows that are measured."""


async def occupancy_of(client: Redis, index: str, more: Sequence[str], rows: str) -> Occupancy:
    """Return how many rows an index has, what these take in memory with `more` keys, and who has copies.

    Args:
        client: a client of the server.
        index: the sorted set of all keys.
        more: further keys that belong to the rows.
        rows: what the keys of rows begin with.
    """
    async with client.pipeline(transaction=False) as commands:
        commands.zcard(index)
        commands.zrandmember(index, _SAMPLE)
        commands.info("replication")
        count, names, replication = await commands.execute(raise_on_error=False)
    if isinstance(count, BaseException):
        raise count
    names = [f"{rows}{name.decode('ascii')}" for name in names] if isinstance(names, list) else []
    sizes = await _memory(client, [*names, index, *more])
    sampled, rest = sizes[: len(names)], sizes[len(names) :]
    # A row of the index may have expired since it was chosen.
    living = [size for size in sampled if size]
    known = bool(living) or not count
    mean = sum(living) / len(living) if living else 0
    taken = round(count * mean) + sum(rest) if known else None
    return Occupancy(int(count), taken, _replicas(replication))


async def _memory(client: Redis, keys: Sequence[str]) -> list[int]:
    """Return the bytes of keys; 0 of those that do not exist, of all if this user may not ask."""
    async with client.pipeline(transaction=False) as commands:
        for key in keys:
            commands.memory_usage(key)
        answers: list[Any] = await commands.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, NoPermissionError):
            raise answer
    return [answer if isinstance(answer, int) else 0 for answer in answers]


def _replicas(replication: Any) -> list[str] | None:
    if not isinstance(replication, dict):
        return None
    found = (replication.get(f"slave{number}") for number in range(replication.get("connected_slaves", 0)))
    return [f"{each['ip']}:{each['port']}" for each in found if isinstance(each, dict)]
