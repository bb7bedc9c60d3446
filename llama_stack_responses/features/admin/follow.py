"""The changes in a store, for `tail`."""

from __future__ import annotations

from typing import Final

from ...core.owner import Owner
from ...core.types import Json
from ...store.layout import second
from ...store.records import Records
from .store_view import StoreView, Wanted

_WINDOW_SECONDS: Final = 3600.0
"""Seconds of creation that each poll reads again."""

_MAX_ROWS: Final = 20_000
"""Maximum number of rows that a poll reads, of all owners."""

_MIN_ROWS: Final = 50
"""Minimum number of rows that a poll reads of each owner."""


class ChangeFollower:
    """Finds the responses of the last hour that are new, or whose status is.

    A response in the foreground is stored at its end, below those that were created after it, and one in the background
    changes its status in its place. So each poll reads the whole window again, and compares.

    Args:
        records: the store.
        owner: only this owner's; None for all.
        max_rows: maximum rows that a poll reads: the newest rows of each owner, equally many.
        min_rows: minimum for the number of rows of each owner.
    """

    def __init__(
        self, records: Records, owner: Owner | None, max_rows: int = _MAX_ROWS, min_rows: int = _MIN_ROWS
    ) -> None:
        self._records = records
        self._view = StoreView(records)
        self._owner = owner
        self._max_rows = max_rows
        self._min_rows = min_rows
        self._statuses: dict[str, str] = {}
        # By owner: the order of the oldest row, if there may be more. Older ones are not compared, so they are not new.
        self._floors: dict[str, str] = {}

    async def first(self, limit: int, wanted: Wanted) -> list[Json]:
        """Return the newest wanted rows, oldest first. What is stored now is not new for `changed`."""
        await self._compared()
        rows = await self._view.newest(limit, self._owner, wanted)
        self._statuses |= {row["id"]: row["status"] for row in rows}
        return rows[::-1]

    async def changed(self, wanted: Wanted) -> list[Json]:
        """Return the wanted rows that are new or have another status since the last call, oldest first."""
        rows = sorted(filter(wanted, await self._compared()), key=lambda row: str(row["order"]))
        return [await self._view.with_owner(row) for row in rows]

    async def _compared(self) -> list[Json]:
        """Read the window; return the rows whose status has changed since the last poll."""
        since = second(await self._records.now() - _WINDOW_SECONDS)
        parts = [each async for owners in self._view.buckets(self._owner, since) for each in owners]
        rows_per_owner = max(self._max_rows // max(len(parts), 1), self._min_rows)
        self._floors = {of: order for of, order in self._floors.items() if order > since}
        before, self._statuses, changes = self._statuses, {}, list[Json]()
        for of, digits in parts:
            rows = await self._view.rows(of, digits, rows_per_owner, since=max(since, self._floors.get(of, "")))
            if len(rows) == rows_per_owner:
                self._floors[of] = rows[-1]["order"]
            self._statuses |= {row["id"]: row["status"] for row in rows}
            changes += (row for row in rows if before.get(row["id"]) != row["status"])
        return changes
