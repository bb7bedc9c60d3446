"""Has the batches worked for that have work left, each by one server at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

from ...concurrency.tasks import LoopTask, answers_of, end_all
from ...core.errors import ApiError
from ...core.ids import tag_of
from ...feature import Ended
from ...lifecycle.periodic import Periodic
from ...logs import Outage, get_logger
from ...store.records import Delete, Put, Records, VersionIs, committed, pages_in
from .file_expiry import FileExpiry
from .parts import Parts
from .rows import WORK, Line, lease_key
from .run import BatchRun

logger = get_logger(__name__)

_POLL_SECONDS: Final = 1.0
"""Interval in which a server looks for batches that no server works for, and renews its leases."""
_EXPIRY_SECONDS: Final = 10.0
"""Interval in which a server looks for files that have expired."""
_LEASE_SECONDS: Final = 10.0
"""Time after which the lease of a dead server has expired."""


@dataclass(slots=True)
class _Running:
    """A batch for which this server works.

    Attributes:
        of: the hash of its owner.
        version: that of the lease.
        until: when the lease expires, on the clock of the event loop.
    """

    of: str
    run: BatchRun
    task: asyncio.Task[None]
    version: int
    until: float


class Dispatcher:
    """Works for batches, as far as there is room.

    Args:
        records: the store.
        poll_seconds: interval in which it looks for batches and renews its leases.
        lease_seconds: how long a lease is valid.
    """

    def __init__(
        self, records: Records, poll_seconds: float = _POLL_SECONDS, lease_seconds: float = _LEASE_SECONDS
    ) -> None:
        self._records = records
        self._poll_seconds, self._lease_seconds = poll_seconds, lease_seconds
        self.parts: Parts | None = None
        """What the work needs, once the API is there that runs it."""
        self._name = token_hex(8).encode()
        self._task = LoopTask(self._repeat)
        self._wake = asyncio.Event()
        self._running: dict[str, _Running] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        """The batches that begin no more lines and for which it does not work: it cancels their lines, once."""
        self._files = FileExpiry(records)
        # A file store may be slow, for which the leases must not wait.
        self._expiry = Periodic(self._expire, "could not delete expired files of batches", logger, _EXPIRY_SECONDS)

    def start(self) -> None:
        """Start in the running event loop, if the store is transactional."""
        if self._records.transactional:
            self._task.start()
            self._expiry.start()

    async def stop(self) -> None:
        """Stop. Other servers go on with the batches."""
        await self._expiry.stop()
        await self._task.stop()
        ending, self._ending = self._ending, {}
        await end_all(ending.values())
        running, self._running = self._running, {}
        for each in running.values():
            each.task.cancel()
        if running:
            await asyncio.wait([each.task for each in running.values()])
        with suppress(ApiError):
            for batch_id, each in running.items():
                await self._let_go(batch_id, each)

    def look(self, batch_id: str | None = None) -> None:
        """Look at once for batches that no server works for, or for what there is to do for a batch."""
        if self.parts and batch_id:
            self.parts.places.found(tag_of(batch_id))
        if running := self._running.get(batch_id or ""):
            running.run.wake()
        self._wake.set()

    def ended(self, ended: Ended) -> None:
        """Look at once for what is next if the response is that of a line."""
        line = Line.of_response(ended.response["id"])
        if line and (running := self._running.get(line.batch)):
            running.run.wake()

    async def _repeat(self) -> None:
        outage = Outage()
        while True:
            self._wake.clear()
            try:
                # A partition of the store that does not answer holds up no other one.
                if failures := [*await self._renew(), *await self._begin()]:
                    raise failures[0]
                outage.over()
            except ApiError as error:
                if outage.should_log(error):
                    logger.warning("could not look for batches: %s", error)
            except Exception:
                logger.exception("could not look for batches")
            self._drop_expired()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._poll_seconds)

    async def _expire(self) -> None:
        """Delete the files that have expired."""
        if self.parts:
            await self._files.delete_due(self.parts)

    async def _renew(self) -> list[ApiError]:
        """Renew the leases, and forget the batches that have ended; return what failed."""
        renewed = await answers_of(self._renewed(*each) for each in list(self._running.items()))
        return [each for each in renewed if each]

    async def _renewed(self, batch_id: str, each: _Running) -> None:
        if each.task.done():
            del self._running[batch_id]
            if not each.task.cancelled() and (error := each.task.exception()):
                logger.error("work for a batch failed: %s", batch_id, exc_info=error)
            await self._let_go(batch_id, each)
            return
        renewed = asyncio.get_running_loop().time()
        lease, until = lease_key(batch_id), await self._records.now() + self._lease_seconds
        if await committed(self._records, [Put(lease, self._name, until)], [VersionIs(lease, each.version)]):
            each.version += 1
            each.until = renewed + self._lease_seconds
        elif not await self._is_own(batch_id, each):
            each.task.cancel()

    async def _is_own(self, batch_id: str, running: _Running) -> bool:
        """Return whether this server has the lease after all: an earlier commit was applied without an answer."""
        lease = lease_key(batch_id)
        found = (await self._records.get_many([lease])).get(lease)
        if found is None or found.value != self._name:
            return False
        running.version = found.version
        return True

    async def _let_go(self, batch_id: str, running: _Running) -> None:
        lease = lease_key(batch_id)
        await committed(self._records, [Delete(lease)], [VersionIs(lease, running.version)])

    def _drop_expired(self) -> None:
        """End the work whose lease could not be renewed in time: another server may have begun it."""
        now = asyncio.get_running_loop().time()
        for each in self._running.values():
            if now >= each.until:
                each.task.cancel()

    async def _begin(self) -> list[ApiError]:
        """Begin to work for batches that no server works for, those of users with few running ones first.

        Return why partitions of the store did not answer.
        """
        if self.parts is None:
            return []
        found, failures = await self.parts.places.read(self._work_in)
        waiting = [(batch_id, of) for batch_id, of, _ in found if batch_id not in self._running]
        closed = {batch_id: of for batch_id, of, version in found if version > 1}
        while waiting and len(self._running) < self.parts.settings.at_once:
            shares = Counter(each.of for each in self._running.values())
            waiting.sort(key=lambda each: (shares[each[1]], each[0]))
            batch_id, of = waiting.pop(0)
            await self._take(self.parts, batch_id, of)
        try:
            await self.parts.places.announce(tag_of(batch_id) for batch_id, _ in waiting)
        except ApiError as error:
            failures.append(error)
        self._end_lines(self.parts, closed)
        return failures

    async def _work_in(self, number: int) -> list[tuple[str, str, int]]:
        """Return the batches of a partition with work left: id, hash of the owner, and version of the row."""
        pages = pages_in(self._records, number, WORK)
        return [(key.removeprefix(WORK), row.value.decode(), row.version) async for rows in pages for key, row in rows]

    def _end_lines(self, parts: Parts, closed: Mapping[str, str]) -> None:
        """Cancel the lines of batches, by id with the hash of their owner, that begin no more.

        The server that works for one of them may be dead, and its lease not have expired. Each line ends once.
        """
        for batch_id, task in list(self._ending.items()):
            if batch_id not in closed and task.done():
                del self._ending[batch_id]
        for batch_id, of in closed.items():
            if batch_id not in self._running and batch_id not in self._ending:
                work = BatchRun(parts, of, batch_id).end_lines()
                self._ending[batch_id] = asyncio.create_task(work, name=f"lines of {batch_id}")

    async def _take(self, parts: Parts, batch_id: str, of: str) -> None:
        lease, began = lease_key(batch_id), asyncio.get_running_loop().time()
        until = await self._records.now() + self._lease_seconds
        # A failover may lose the lease, so that another server takes it and both work for a moment: no line ends twice.
        # The next renewal tells one of them. With the same version it may be the second one.
        if not await committed(self._records, [Put(lease, self._name, until)], [VersionIs(lease, None)]):
            return
        run = BatchRun(parts, of, batch_id)
        task = asyncio.create_task(run.run(), name=f"batch {batch_id}")
        task.add_done_callback(lambda _: self._wake.set())
        self._running[batch_id] = _Running(of, run, task, 1, began + self._lease_seconds)
