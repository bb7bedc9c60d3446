"""Values that are good to know and that nothing depends on, kept out of the commits of responses.

Commits that write one key wait for one another until each is on the disk. If a job's commit wrote the turn of its
owner's last job, all of the owner's requests would wait for it. So such values are written afterwards: by one commit at
a time in each process, with the last value of each key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from ..core.errors import ApiError
from ..store.records import Put, Record, Records


class Hints:
    """Writes values soon, or not at all if the store cannot be reached.

    Args:
        records: where they go.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._due: dict[str, Put] = {}
        self._sent: dict[str, Put] = {}
        self._sending: asyncio.Task[None] | None = None

    def put(self, *puts: Put) -> None:
        """Has these written."""
        self._due |= {each.key: each for each in puts}
        if self._due and (self._sending is None or self._sending.done() or _of_another_loop(self._sending)):
            self._sending = asyncio.create_task(self._send())

    def over(self, found: Mapping[str, Record]) -> dict[str, Record]:
        """What was read, with the values in place that are still to be written."""
        return {**found, **{key: Record(put.value, 0) for key, put in (self._sent | self._due).items()}}

    async def written(self) -> None:
        """Returns when nothing is left to write."""
        if self._sending and not _of_another_loop(self._sending):
            await asyncio.wait([self._sending])

    async def _send(self) -> None:
        while self._due:
            self._sent, self._due = self._due, {}
            with suppress(ApiError):
                await self._records.commit(list(self._sent.values()))
            self._sent = {}


def _of_another_loop(task: asyncio.Task[None]) -> bool:
    return task.get_loop() is not asyncio.get_running_loop()
