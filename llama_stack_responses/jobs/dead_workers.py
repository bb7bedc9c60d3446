"""Finds stalled jobs: those whose worker has no lease, and is dead."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ..store.records import Condition, Records, VersionIs, pages_of


def is_stalled(worker: str) -> Condition:
    """Return the condition that the worker has no lease."""
    return VersionIs(f"p/{worker}", None)


async def iter_stalled(records: Records, prefix: str, by: str) -> AsyncIterator[tuple[str, str]]:
    """Yield the worker and the response id of each row `<prefix><worker>/<response>` whose worker has no lease.

    Args:
        by: the worker that looks. Once its own lease has expired too, it learns nothing of the others: it ends.
    """
    async for rows in pages_of(records, prefix):
        held = [key.split("/")[1:] for key, _ in rows]
        living = await records.get_many(list({f"p/{worker}" for worker in (by, *(worker for worker, _ in held))}))
        if f"p/{by}" not in living:
            return
        for worker, response_id in held:
            if f"p/{worker}" not in living:
                yield worker, response_id
