"""Finds stalled jobs: those whose worker has no lease, and is dead."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ..core.ids import tag_of
from ..store.layout import with_tag
from ..store.records import Condition, Records, VersionIs, pages_of


def lease_key(worker: str, tag: int = 0) -> str:
    """Return the key of a worker's lease for the jobs and the foreground responses with this tag.

    The one of tag 0 is always there while the worker is alive.
    """
    return with_tag(f"p/{worker}", tag)


def is_stalled(worker: str, response_id: str) -> Condition:
    """Return the condition that the worker has no lease for the response."""
    return VersionIs(lease_key(worker, tag_of(response_id)), None)


async def iter_stalled(records: Records, prefix: str, by: str) -> AsyncIterator[tuple[str, str]]:
    """Yield the worker and the response id of each row `<prefix><worker>/<response>` whose worker has no lease.

    Args:
        by: the worker that looks. Once its own lease has expired too, it learns nothing of the others: it ends.
    """
    async for rows in pages_of(records, prefix):
        held = [key.split("/")[1:] for key, _ in rows]
        leases = [lease_key(worker, tag_of(response_id)) for worker, response_id in held]
        living = await records.get_many(list({lease_key(by), *leases}))
        if lease_key(by) not in living:
            return
        for (worker, response_id), lease in zip(held, leases, strict=True):
            if lease not in living:
                yield worker, response_id
