"""Hints: values that correctness does not depend on, kept out of the commits of responses.

Commits that write the same key run one after another, each until it is on disk. If the commit of a job wrote the
start tag of its owner's last job, all commits of that owner would queue up. So hints are written later, with the last
value of each key, by one commit at a time in each process.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from ..concurrency.tasks import LoopTask
from ..core.errors import ApiError
from ..store.records import Put, Record, Records
from ..store.routing import by_tag


class HintWriter:
    """Writes hints in the background, and drops them if the store is unavailable.

    Args:
        records: the store.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._due: dict[str, Put] = {}
        self._sent: dict[str, Put] = {}
        self._sending = LoopTask(self._send)

    def schedule(self, *puts: Put) -> None:
        """Schedule these writes; a later value of a key replaces an earlier one."""
        self._due |= {each.key: each for each in puts}
        if self._due:
            self._sending.start()

    def overlay(self, records: Mapping[str, Record]) -> dict[str, Record]:
        """Return the records read from the store, overlaid with the values that are not written yet."""
        return {**records, **{key: Record(put.value, 0) for key, put in (self._sent | self._due).items()}}

    async def written(self) -> None:
        """Wait until all scheduled writes are done."""
        await self._sending.wait()

    async def _send(self) -> None:
        while self._due:
            self._sent, self._due = self._due, {}
            for hints in by_tag(self._sent.values()):
                with suppress(ApiError):
                    await self._records.commit(hints)
            self._sent = {}
