"""The deliveries in the store: made of events, queued, settled, listed and sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ...core.errors import ApiError, not_in_list
from ...core.ids import tag_of
from ...logs import get_logger
from ...store import codec
from ...store.conflict_retry import ConflictRetry
from ...store.records import (
    Delete,
    Op,
    Record,
    Records,
    VersionIs,
    after_prefix,
    committed,
    pages_in,
    pages_of,
    partitions_of,
    range_in,
    read_replicated,
)
from ...store.routing import by_partition
from .endpoints import Endpoints
from .rows import (
    DELIVERIES,
    EVENTS,
    QUEUE,
    Delivery,
    Event,
    Queued,
    due_part,
    endpoint_key,
    event_time_of,
)

logger = get_logger(__name__)

_LOOKED_AT: Final = 20_000
"""Deliveries that wait of which the oldest is sought."""
_EVENTS: Final = 64
"""Events of which deliveries are made in one commit."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a delivery after an attempt.

    Attributes:
        row: its row of the queue.
        due: when it is sent again, in seconds since the epoch; None if it is not.
    """

    row: Queued
    delivery: Delivery
    due: float | None


class Deliveries:
    """The deliveries.

    Args:
        records: the store.
        endpoints: the endpoints of users.
        configured: the event types of the endpoints of the configuration, by their ids.
        kept_seconds: how long a delivery is kept.
    """

    def __init__(
        self, records: Records, endpoints: Endpoints, configured: Mapping[str, Iterable[str]], kept_seconds: float
    ) -> None:
        self._records, self._endpoints = records, endpoints
        self._configured = {name: frozenset(types) for name, types in configured.items()}
        self._kept_seconds = kept_seconds

    async def make(self, number: int = 0) -> list[str]:
        """Make the deliveries of the oldest events in a partition.

        Return the ids of their endpoints, and an empty one as the last if there may be more events.

        Raises:
            ApiError: 503, the store does not answer.
        """
        rows = await range_in(self._records, number, EVENTS, after_prefix(EVENTS), limit=_EVENTS)
        if not rows:
            return []
        now, targets = await self._records.now(), _Targets(self._endpoints)
        ops, endpoints = list[Op](), list[str]()
        conditions = [VersionIs(key, row.version) for key, row in rows]
        for key, row in rows:
            ops.append(Delete(key))
            if (event := _read(key, row)) is None:
                continue
            for endpoint, of in [
                *((name, "") for name, types in self._configured.items() if event.type in types),
                *((each, event.of) for each in await targets.of(event)),
            ]:
                delivery = Delivery.of_event(event, endpoint, now)
                ops += [delivery.put(self._kept_seconds), delivery.queued(of, now)]
                endpoints.append(endpoint)
        # If the commit conflicts, another server has made some, and the others are read again. A delivery to an
        # endpoint that was deleted meanwhile is dropped when it would be sent.
        await committed(self._records, ops, conditions)
        return [*endpoints, ""]

    async def due(self, endpoint: str, now: float, limit: int) -> list[Queued]:
        """Return the deliveries to an endpoint that are to be sent by now, those that wait longest first.

        An end that a primary alone has may be lost with it, and another one take its place: nothing is sent of it.

        Raises:
            ApiError: as from `read_replicated`.
        """
        prefix = f"{QUEUE}{endpoint}/"
        read = partial(self._records.range, prefix, f"{prefix}{due_part(now)}0", limit=limit)
        rows = await read_replicated(self._records, tag_of(endpoint), read, bool)
        return [Queued.read(key, row.value) for key, row in rows]

    async def oldest(self, number: int = 0) -> list[float]:
        """Return when the event of the delivery happened that waits longest in a partition, in seconds since the epoch;
        nothing if none does. Of very many deliveries, some are looked at."""
        found, left = list[float](), _LOOKED_AT
        async for rows in pages_in(self._records, number, QUEUE):
            found += [event_time_of(Queued.read(key, row.value).delivery) for key, row in rows]
            left -= len(rows)
            if left <= 0:
                break
        return [min(found)] if found else []

    async def first(self, number: int, after: str) -> Queued | None:
        """Return what is due first in a partition at the first endpoint whose id is greater than `after`."""
        start = after_prefix(f"{QUEUE}{after}/") if after else QUEUE
        rows = await range_in(self._records, number, start, after_prefix(QUEUE), limit=1)
        return Queued.read(rows[0][0], rows[0][1].value) if rows else None

    async def load(self, rows: Sequence[Queued]) -> dict[str, Delivery]:
        """Return the deliveries of rows of the queue, by their ids; those that are not kept any more are left out."""
        keys = [f"{DELIVERIES}{row.endpoint}/{row.delivery}" for row in rows]
        found = [Delivery.decode(each.value) for each in (await self._records.get_many(keys)).values()]
        return {each.id: each for each in found}

    async def settle(self, settled: Settled, more: Sequence[Op] = ()) -> bool:
        """Store what became of a delivery; return False if another server has done so, or it was deleted."""
        ops: list[Op] = [Delete(settled.row.key), settled.delivery.put(self._kept_seconds), *more]
        if settled.due is not None:
            ops.append(settled.delivery.queued(settled.row.endpoint_of, settled.due))
        return await committed(self._records, ops, [VersionIs(settled.row.key, 1)])

    async def drop(self, rows: Iterable[Queued]) -> None:
        """Take deliveries out of the queue, and delete them."""
        for row in rows:
            await self._records.commit([Delete(row.key), Delete(f"{DELIVERIES}{row.endpoint}/{row.delivery}")])

    async def page(self, endpoint: str, after: str | None, limit: int) -> tuple[list[Delivery], bool]:
        """Return deliveries to an endpoint, newest first, older than `after`, and whether there are more.

        Raises:
            ApiError: 400, the endpoint has no delivery `after`.
        """
        prefix = f"{DELIVERIES}{endpoint}/"
        if after and not await self._records.get_many([f"{prefix}{after}"]):
            raise not_in_list(after[:80])
        end = f"{prefix}{after}" if after else after_prefix(prefix)
        rows = await self._records.range(prefix, end, limit=limit + 1, reverse=True)
        return [Delivery.decode(row.value) for _, row in rows[:limit]], len(rows) > limit

    async def every(self, endpoint: str) -> AsyncIterator[Delivery]:
        """Yield the deliveries to an endpoint, oldest first."""
        async for rows in pages_of(self._records, f"{DELIVERIES}{endpoint}/"):
            for _, row in rows:
                yield Delivery.decode(row.value)

    async def resend(self, of: str, endpoint: str, delivery_id: str) -> Delivery:
        """Have a delivery sent again that does not wait; return it.

        Raises:
            ApiError: 404, there is none with this id.
        """
        key, retry = f"{DELIVERIES}{endpoint}/{delivery_id}", ConflictRetry()
        while True:
            await retry.wait()
            owned = endpoint_key(of, endpoint)
            found = await self._records.get_many([key, owned])
            if key not in found or owned not in found:
                raise ApiError(404, f"Delivery '{delivery_id[:80]}' not found.", param="delivery_id")
            old, now = Delivery.decode(found[key].value), await self._records.now()
            if old.status == "waiting":
                return old
            new = replace(old, status="waiting", tried=0, created_at=now)
            ops = [new.put(self._kept_seconds), new.queued(of, now)]
            if await committed(self._records, ops, [_same(key, found), _same(owned, found)]):
                return new

    async def forget(self, of: str) -> None:
        """Delete all events and deliveries of an owner's responses."""
        for prefix in (EVENTS, DELIVERIES):
            async for rows in pages_of(self._records, prefix):
                deletes = [Delete(key) for key, row in rows if _owner_of(prefix, row) == of]
                for own in by_partition(deletes, partitions_of(self._records)).values():
                    await self._records.commit(own)


class _Targets:
    """The endpoints of owners, each owner's read once."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._known: dict[str, list[tuple[str, frozenset[str]]]] = {}

    async def of(self, event: Event) -> list[str]:
        """Return the ids of the endpoints of the owner that get an event."""
        if event.of not in self._known:
            self._known[event.of] = await self._read(event.of)
        return [name for name, types in self._known[event.of] if event.type in types]

    async def _read(self, of: str) -> list[tuple[str, frozenset[str]]]:
        owned = await self._endpoints.of_owner(of)
        states = await self._endpoints.states([each.id for each in owned])
        disabled = {name for name, state in states.items() if state.disabled_at}
        return [(each.id, frozenset(each.event_types)) for each in owned if each.id not in disabled]


def _same(key: str, found: Mapping[str, Record]) -> VersionIs:
    return VersionIs(key, found[key].version)


def _read(key: str, row: Record) -> Event | None:
    try:
        return Event.decode(row.value)
    except codec.UnreadableError as error:
        logger.error("could not read the end of a response, no webhook is sent: %s: %s", key, error)
        return None


def _owner_of(prefix: str, row: Record) -> str:
    stored = codec.decode(row.value)
    of: str = stored[2] if prefix == EVENTS else stored["of"]
    return of
