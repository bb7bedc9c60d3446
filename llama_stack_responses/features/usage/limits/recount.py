"""Recounts what is stored of each user, team and key, by one server of the store at a time.

The row `ubr` has the time before which no server begins the next recount. The server that recounts moves it on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import batched
from typing import Final

from ....core.owner import Owner
from ....lifecycle.periodic import Periodic
from ....logs import get_logger
from ....store import codec
from ....store.clock import StoreClock
from ....store.conflict_retry import ConflictRetry
from ....store.decoder import Decoder
from ....store.records import (
    Delete,
    Op,
    Put,
    Record,
    Records,
    VersionIs,
    committed,
    pages_of,
    partitions_of,
    unmoved,
)
from ....store.routing import tag_of_key
from ....store.stored_bytes import StoredBytes
from ..settings import Limit
from .scopes import name_of
from .stored import PREFIX, Row, row_of

logger = get_logger(__name__)

SECONDS: Final = 600.0
"""Seconds between the end of a recount and the next one."""
TURN: Final = "ubr"
_LOOK_SECONDS: Final = 30.0
_BYTES_PER_SECOND: Final = 16 * 2**20
_READ_SECONDS: Final = 0.005
_ROWS: Final = 100
"""Rows that are written together."""
_KINDS: Final = tuple(Limit(by=by) for by in ("user", "team", "key", "all"))


class _TurnLost(Exception):  # noqa: N818 - another server recounts
    pass


async def _at_rate(read: int) -> None:
    await asyncio.sleep(_READ_SECONDS + read / _BYTES_PER_SECOND)


class Recount(Periodic):
    """Recounts at intervals, unless another server does.

    Args:
        records: the store.
        decoder: decodes responses.
        pause: is awaited after each read, with the bytes that were read.
    """

    def __init__(
        self, records: Records, decoder: Decoder, pause: Callable[[int], Awaitable[object]] = _at_rate
    ) -> None:
        super().__init__(self.run, "could not count what is stored", logger, _LOOK_SECONDS)
        self._records, self._slow = records, pause
        self._bytes = StoredBytes(unmoved(records), decoder, self._pause_after)
        self._clock = StoreClock(records)
        self._turn: int | None = None
        self._renew_at = 0.0

    async def run(self) -> None:
        """Recount if it is time, and no other server does.

        Raises:
            ApiError: 503, the store does not answer.
        """
        now = await self._clock.read()
        row = (await self._records.get_many([TURN])).get(TURN)
        if row and codec.decode(row.value) > now:
            return
        self._turn = row.version if row else None
        try:
            await self._renew()
            await self._recount()
            await self._renew()
        except _TurnLost:
            return

    async def _recount(self) -> None:
        before = {key: Row.of(record).added async for page in pages_of(self._records, PREFIX) for key, record in page}
        sums: Counter[str] = Counter()
        async for owner, size in self._bytes.count():
            for key in _rows_of(owner):
                sums[key] += size
        for keys in self._together({**before, **sums}):
            await self._write(keys, sums, before)

    def _together(self, keys: Iterable[str]) -> Iterator[Sequence[str]]:
        """Yield keys of rows that one commit can change."""
        of_partitions = defaultdict[int, list[str]](list)
        for key in keys:
            of_partitions[tag_of_key(key) % partitions_of(self._records)].append(key)
        for those in of_partitions.values():
            yield from batched(those, _ROWS)

    async def _write(self, keys: Sequence[str], sums: Counter[str], before: dict[str, int]) -> None:
        """Write what was counted. What servers have added since the beginning may not have been, and stays."""
        retry = ConflictRetry()
        while True:
            await retry.wait()
            rows = await self._records.get_many(keys)
            changes = [
                (key, row, _counted(row, sums[key], before.get(key, 0)))
                for key, row in ((key, rows.get(key)) for key in keys)
            ]
            changes = [(key, row, new) for key, row, new in changes if new != Row.of(row)]
            ops: list[Op] = [Put(key, new.encode()) if new != Row() else Delete(key) for key, _, new in changes]
            unchanged = [VersionIs(key, row.version if row else None) for key, row, _ in changes]
            if not ops or await committed(self._records, ops, unchanged):
                return

    async def _pause_after(self, read: int) -> None:
        await self._slow(read)
        if self._clock() >= self._renew_at:
            await self._renew()

    async def _renew(self) -> None:
        """Keep other servers from recounting."""
        now = self._clock()
        put = Put(TURN, codec.encode(now + SECONDS, small=True))
        if not await committed(self._records, [put], [VersionIs(TURN, self._turn)]):
            raise _TurnLost
        self._turn, self._renew_at = (self._turn or 0) + 1, now + SECONDS / 2


def _rows_of(owner: Owner) -> list[str]:
    """Return the rows of the user, team and key of what is stored."""
    return [row_of(kind.by, name) for kind in _KINDS if (name := name_of(kind, owner, "")) is not None]


def _counted(row: Record | None, size: int, before: int) -> Row:
    return Row(size, max(0, Row.of(row).added - before))
