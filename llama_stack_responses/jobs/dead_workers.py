"""Finds what workers hold, and of that what is stalled: the worker has no lease, and is dead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from ..core.errors import ApiError
from ..core.ids import tag_of
from ..store.clock import MAX_DIFFERENCE_SECONDS
from ..store.layout import with_tag
from ..store.records import Condition, Delete, Record, Records, VersionIs, committed, pages_in


def lease_key(worker: str, tag: int = 0) -> str:
    """Return the key of a worker's lease for the jobs and the foreground responses with this tag.

    The one of tag 0 is always there while the worker is alive.
    """
    return with_tag(f"p/{worker}", tag)


def is_stalled(worker: str, response_id: str) -> Condition:
    """Return the condition that the worker has no lease for the response."""
    return VersionIs(lease_key(worker, tag_of(response_id)), None)


async def held_in(records: Records, numbers: Iterable[int], prefix: str) -> set[str]:
    """Return the response ids of all rows `<prefix><response>` in these partitions."""
    return {
        key.removeprefix(prefix)
        for number in numbers
        async for rows in pages_in(records, number, prefix)
        for key, _ in rows
    }


async def iter_stalled(
    records: Records, prefix: str, by: str, numbers: Iterable[int] = (0,)
) -> AsyncIterator[tuple[str, str]]:
    """Yield the worker and the response id of each row `<prefix><worker>/<response>` whose worker has no lease.

    A lease that ends later than that of `by` was written while the clock was ahead. It is deleted: a worker that died
    meanwhile would count as alive until the clock reaches that time, and one that lives has renewed its lease by now.

    Args:
        by: the worker that looks, right after it has renewed its lease. Once that has expired too, it learns nothing of
            the others: this ends.
        numbers: the partitions that are searched.

    Raises:
        ApiError: 503, a partition does not answer; all others were searched before.
    """
    failure: ApiError | None = None
    for number in numbers:
        try:
            async for each in _stalled_in(records, number, prefix, by):
                yield each
        except ApiError as error:
            failure = error
    if failure:
        raise failure


async def _stalled_in(records: Records, number: int, prefix: str, by: str) -> AsyncIterator[tuple[str, str]]:
    async for rows in pages_in(records, number, prefix):
        held = [key.split("/")[1:] for key, _ in rows]
        keys = [lease_key(worker, tag_of(response_id)) for worker, response_id in held]
        leases = await records.get_many(list(dict.fromkeys([lease_key(by), *keys])))
        if lease_key(by) not in leases:
            return
        latest = _end_of(leases[lease_key(by)]) + MAX_DIFFERENCE_SECONDS
        for key, lease in list(leases.items()):
            if _end_of(lease) > latest and await committed(records, [Delete(key)], [VersionIs(key, lease.version)]):
                del leases[key]
        for (worker, response_id), key in zip(held, keys, strict=True):
            if key not in leases:
                yield worker, response_id


def _end_of(lease: Record) -> float:
    """Return when a lease ends, in seconds since the epoch."""
    return float(lease.value)
