"""Hints: values that correctness does not depend on, kept out of the commits of responses.

Commits that write the same key run one after another, each until it is on disk. If the commit of a job wrote the
start tag of its owner's last job, all commits of that owner would queue up. So hints are written later, with the last
value of each key, by one commit at a time in each process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ..concurrency.tasks import LoopTask
from ..core.errors import ApiError
from ..store.records import Put, Record, Records, partitions_of
from ..store.routing import by_partition


@dataclass(slots=True, eq=False)
class Unread:
    """Values that were not written when a read began, and those that were scheduled since, by their keys."""

    puts: dict[str, Put]

    def over(self, records: Mapping[str, Record]) -> dict[str, Record]:
        """Return the records that were read, overlaid with these values."""
        return {**records, **{key: Record(put.value, 0) for key, put in self.puts.items()}}


class HintWriter:
    """Writes hints in the background, and drops them if the store is unavailable.

    Args:
        records: the store.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._due: dict[str, Put] = {}
        self._sent: dict[str, Put] = {}
        self._unread: list[Unread] = []
        self._sending = LoopTask(self._send)

    def schedule(self, *puts: Put) -> None:
        """Schedule these writes; a later value of a key replaces an earlier one."""
        due = {each.key: each for each in puts}
        self._due |= due
        for unread in self._unread:
            unread.puts |= due
        if self._due:
            self._sending.start()

    @contextmanager
    def unread(self) -> Iterator[Unread]:
        """Yield the values that a read within the block may miss: it may be answered after they were written."""
        unread = Unread(self._sent | self._due)
        self._unread.append(unread)
        try:
            yield unread
        finally:
            self._unread.remove(unread)

    async def written(self) -> None:
        """Wait until all scheduled writes are done."""
        await self._sending.wait()

    async def _send(self) -> None:
        while self._due:
            self._sent, self._due = self._due, {}
            for hints in by_partition(self._sent.values(), partitions_of(self._records)).values():
                with suppress(ApiError):
                    await self._records.commit(hints)
            self._sent = {}
