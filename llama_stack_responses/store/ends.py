"""What is written with the end of a response, such as what it has used, exactly once however the server ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ..concurrency.tasks import LoopTask
from ..core.errors import ApiError
from ..core.owner import Owner
from ..core.types import Json
from ..logs import Outage, get_logger
from .commit_outcome import RepeatedCommit
from .records import Op, Records, partitions_of
from .routing import by_partition

logger = get_logger(__name__)

_TOGETHER: Final = 64
"""Responses whose ends share a commit."""
_MAX_WAITING: Final = 20_000
"""Ends that wait for a partition that does not answer; further ones are lost."""
_WAIT_SECONDS: Final = 5.0
"""Seconds for which a response waits until its end is written."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A response that has ended.

    Attributes:
        response: the response in its final state.
        owner: its owner.
        timing: when its rounds and tool calls came, as `Timeline` records it; None if that is not known.
        at: when it ended, in seconds since the epoch, on the store's clock.
        inputs: the items of its own input, with those of a history that the client sent again; None if the response
            is not stored, or if its input was stored before, as that of a background response is.
        error: why a background response failed, with what its `error` does not say, such as the HTTP status; else None.
    """

    response: Json
    owner: Owner
    timing: Json | None
    at: float
    inputs: Sequence[Json] | None = None
    error: ApiError | None = None


AtEnd = Callable[[Ended], Sequence[Op]]
"""Returns what the commit of a response's end writes for it."""

OnEnd = Callable[[Ended], None]
"""Is called once the end of a response is written."""


class Ends:
    """Writes the ends of responses.

    Args:
        records: the store.
        at_end: say what is written.
        on_end: are called afterwards.
        retry_seconds: interval between two calls of a store that does not answer.
    """

    def __init__(
        self, records: Records, at_end: Sequence[AtEnd], on_end: Sequence[OnEnd], retry_seconds: float
    ) -> None:
        self._records, self._at_end, self._on_end, self._retry_seconds = records, at_end, on_end, retry_seconds
        self._partitions, self._writers = partitions_of(records), dict[int, _Writer]()

    def ops(self, ended: Ended | None) -> list[Op]:
        """Return the ops with which the commit of a response's end begins; None is no end."""
        return [op for each in self._at_end for op in each(ended)] if ended else []

    def written(self, ended: Ended | None) -> None:
        """Note that the end of a response is written; None is no end."""
        if ended:
            for each in self._on_end:
                each(ended)

    async def unstored(self, ended: Ended) -> None:
        """Write the end of a response that is not stored, in a commit that it shares with others.

        If the store does not answer soon, the response does not wait: its end is written once the store answers.
        """
        # Its tokens are used, whenever that is written.
        self.written(ended)
        if not (ops := self.ops(ended)):
            return
        groups = by_partition(ops, self._partitions)
        writers = [self._writers.setdefault(number, _Writer(self._records, self._retry_seconds)) for number in groups]
        if any(each.is_full for each in writers):
            logger.error("lost what a response has used, the store does not answer: %s", ended.response["id"])
            return
        written = [writer.write(group) for writer, group in zip(writers, groups.values(), strict=True)]
        await asyncio.wait(written, timeout=_WAIT_SECONDS)

    async def stop(self) -> None:
        """Write what waits, if the store answers, and end."""
        await asyncio.gather(*(each.stop() for each in self._writers.values()))


class _Writer:
    """Writes ends in one partition of the store, so that one that does not answer holds up no other.

    Args:
        records, retry_seconds: as for `Ends`.
    """

    def __init__(self, records: Records, retry_seconds: float) -> None:
        self._records, self._retry_seconds = records, retry_seconds
        self._waiting = deque[_Unstored]()
        self._together: list[_Unstored] = []
        self._commit = RepeatedCommit()
        self._task = LoopTask(self._write)
        self._stopping = False

    @property
    def is_full(self) -> bool:
        """Whether too many ends wait."""
        return len(self._waiting) >= _MAX_WAITING

    def write(self, ops: Sequence[Op]) -> asyncio.Future[None]:
        """Have ops written; return what is done once they are."""
        unstored = _Unstored(ops, asyncio.get_running_loop().create_future())
        self._waiting.append(unstored)
        self._task.start()
        return unstored.written

    async def stop(self) -> None:
        """Write what waits, if the store answers, and end."""
        self._stopping = True
        if self._waiting:
            self._task.start()
        # It is not cancelled: then it would be unknown whether its commit was applied.
        await self._task.wait()

    async def _write(self) -> None:
        outage = Outage()
        while self._waiting:
            try:
                await self._write_some()
                outage.over()
            except ApiError as error:
                if self._stopping:
                    logger.error("lost what %d responses have used: %s", len(self._waiting), error)
                    return
                if outage.should_log(error):
                    logger.warning("could not write what responses have used: %s", error)
                await asyncio.sleep(self._retry_seconds)

    async def _write_some(self) -> None:
        # The same ends again until the store has confirmed them: a commit that was not answered may be applied.
        self._together = self._together or list(islice(self._waiting, _TOGETHER))
        commit = self._commit
        await commit(lambda: self._apply(commit.applied))
        for each in self._together:
            self._waiting.popleft()
            if not each.written.done():
                each.written.set_result(None)
        self._together, self._commit = [], RepeatedCommit()

    async def _apply(self, applied: bool) -> None:
        if not applied:
            await self._records.commit([op for each in self._together for op in each.ops])


@dataclass(slots=True, eq=False)
class _Unstored:
    """The end of a response that is not stored.

    Attributes:
        ops: what is written.
        written: is done once it is.
    """

    ops: Sequence[Op]
    written: asyncio.Future[None]
