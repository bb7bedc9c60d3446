"""The rows of refused requests.

    rf/<owner>/<position>/<id>        a request that was refused: the fields of a row of the list, and why

The position is that of a response that was created then, so that pages of both lists can be merged. In a store with
several partitions, the rows of an owner are in the home partition of the owner, whose tag the ids have.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Final

from ....core.errors import ApiError
from ....core.ids import tagged_id
from ....core.owner import Owner
from ....store.content_names import Hasher
from ....store.list_row_pages import Rows, Span, bounds_of, page_of_rows, read_rows
from ....store.list_rows import Row
from ....store.records import Delete, Record, Records, after_prefix, pages_of

PREFIX: Final = "rf/"
STATUS: Final = "refused"
"""What the list shows as the status of a refused request."""
FIELDS: Final = (
    "id",
    "created_at",
    "http_status",
    "error",
    "message",
    "param",
    "model",
    "words",
    "metadata",
    "request_id",
)
"""What there is of a refused request. Its row also has the other fields of a row of the list."""

_ID: Final = re.compile("refused_(?:p[0-9a-f]{3})?([0-9a-f]{14})[0-9a-f]{10}")
_ROWS: Final = 500


def key_of(owner: Owner, order: str, suffix: str, tag: int) -> str:
    """Return the key of a row, given its position, ten hexadecimal digits that make its id unique, and its tag."""
    return f"{prefix_of(owner)}{order}/{tagged_id('refused', f'{order}{suffix}', tag)}"


def prefix_of(owner: Owner) -> str:
    """Return the prefix of the keys of an owner's rows."""
    return f"{PREFIX}{Hasher(owner).owner}/"


class RefusedRequests:
    """Reads the rows of refused requests.

    Args:
        records: the store.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    async def page(self, owner: Owner, span: Span, limit: int, wanted: Callable[[Row], bool] | None = None) -> Rows:
        """Return at most `limit` rows of an owner; the arguments are those of the list of responses."""
        bounds = bounds_of(prefix_of(owner), span, "")
        return await page_of_rows(self._records.range, bounds, span, limit, wanted)

    async def head(self, owner: Owner, limit: int) -> list[tuple[str, Record]]:
        """Return the keys and records of an owner's newest rows, not decoded."""
        prefix = prefix_of(owner)
        return await self._records.range(prefix, after_prefix(prefix), limit=limit, reverse=True)

    async def find(self, owner: Owner, refused_id: str) -> Row:
        """Return an owner's row.

        Raises:
            ApiError: 404, there is none with this id.
        """
        key = _key(owner, refused_id)
        record = (await self._records.get_many([key])).get(key) if key else None
        if key is None or record is None:
            raise ApiError(404, f"Refused request with id '{refused_id[:64]}' not found.", param="refused_id")
        [row] = await read_rows([(key, record)])
        return row

    async def every(self, owner: Owner) -> AsyncIterator[Row]:
        """Yield all rows of an owner, oldest first."""
        async for rows in pages_of(self._records, prefix_of(owner), _ROWS):
            for row in await read_rows(rows):
                yield row

    async def delete(self, owner: Owner, refused_id: str) -> None:
        """Delete an owner's row.

        Raises:
            ApiError: 404, there is none with this id.
        """
        await self.find(owner, refused_id)
        if key := _key(owner, refused_id):
            await self._records.commit([Delete(key)])

    async def keep_newest(self, owner: Owner, count: int) -> None:
        """Delete an owner's rows except this number of the newest."""
        kept = await self.head(owner, count)
        if len(kept) < count:
            return
        while older := await self._records.range(prefix_of(owner), kept[-1][0], limit=_ROWS):
            await self._records.commit([Delete(key) for key, _ in older])


def _key(owner: Owner, refused_id: str) -> str | None:
    match = _ID.fullmatch(refused_id)
    return f"{prefix_of(owner)}{match[1]}/{refused_id}" if match else None
