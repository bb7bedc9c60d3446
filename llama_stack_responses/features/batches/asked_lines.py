"""The lines of a batch with another endpoint: the server that works for the batch asks the models itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ...concurrency.share import Share
from ...concurrency.tasks import end_all
from ...core.errors import ApiError
from ...core.types import Json
from ...logs import get_logger
from ...store.records import UNAVAILABLE, VersionIs
from .ends import LINES
from .input_lines import memory_of, value_of
from .objects import counted_of_answer, refusal
from .parts import Parts
from .rows import Counted, Line, Result
from .stored_batches import Running

logger = get_logger(__name__)

_STORE_SECONDS: Final = 1.0
"""Interval between two calls of a store that does not answer."""


class AskedLines:
    """Asks the models for the current user, in tasks.

    After the death of a server, another one asks again for what it has left; the first answer that is stored counts.

    Args:
        parts: what it needs.
        endpoint: the endpoint of the lines.
        wake: is called when a line has ended.
    """

    def __init__(self, parts: Parts, endpoint: str, wake: Callable[[], None]) -> None:
        self._parts, self._endpoint, self._wake = parts, endpoint, wake
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def begin(self, line: Line, text: bytes | bytearray, waits: VersionIs | None = None) -> None:
        """Begin a line, with `waits` as in `StoredBatches.queued`; do nothing if it was begun before."""
        if await self._parts.batches.begun(line, waits):
            await self.go_on(line, text)

    def left(self, running: Running) -> Sequence[Line]:
        """Return the lines that a dead server has left."""
        return [line for line, _ in running.values() if line.number not in self._tasks]

    async def go_on(self, line: Line, text: bytes | bytearray) -> None:
        """Ask for a line in a task, once there is memory for it."""
        held = memory_of(text)
        share = await self._parts.memory.enter(held)
        task = asyncio.create_task(self._ask(line, text), name=f"line {line.response_id}")
        self._tasks[line.number] = task
        task.add_done_callback(lambda _: self._ended(line.number, share, held))

    async def end_lost(self, running: Running) -> None:
        """Do nothing: `left` has what is lost."""

    async def cancel(self, running: Running) -> None:
        """Cancel the lines that run."""
        await self.stop()
        await self._parts.batches.end_together(running, Result(None, False, 0))

    async def stop(self) -> None:
        """End the tasks."""
        await end_all(list(self._tasks.values()))

    def _ended(self, number: int, share: Share, held: int) -> None:
        self._parts.memory.leave(share, held)
        self._tasks.pop(number, None)
        self._wake()

    async def _ask(self, line: Line, text: bytes | bytearray) -> None:
        try:
            body: Json = (await value_of(text))["body"]
            async with self._parts.model_slots.hold(body["model"]), self._parts.slots.hold(1):
                answer = await self._parts.inference.answer(self._endpoint, body)
        except ApiError as error:
            if (pause := self._parts.tries.pause(line.attempt, error)) is not None:
                self._parts.telemetry.record(LINES, 1, {"result": "retried"})
                due = await self._parts.batches.now() + pause
                await self._stored(lambda: self._parts.batches.again(line, due))
                return
            await self._end(line, refusal(error), Counted(False))
        else:
            await self._end(line, Result(None, False, 200, answer), counted_of_answer(answer))

    async def _end(self, line: Line, result: Result, counted: Counted) -> None:
        self._parts.telemetry.record(LINES, 1, {"result": "completed" if counted.completed else "failed"})
        await self._stored(lambda: self._parts.batches.answered(line, result, counted))

    async def _stored(self, store: Callable[[], Awaitable[object]]) -> None:
        """Store the end of a line once the store answers."""
        while True:
            try:
                await store()
            except ApiError as error:
                if error.status != UNAVAILABLE:
                    raise
                await asyncio.sleep(_STORE_SECONDS)
            else:
                return
