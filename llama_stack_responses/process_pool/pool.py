"""A pool of worker processes for tasks on untrusted content."""

from __future__ import annotations

import asyncio
import codecs
import json
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from ..concurrency.fair_budget import WAITING_PER_USER, FairBudget, QueueFull
from ..concurrency.offloading import in_thread
from ..core.errors import ApiError
from ..logs import get_logger
from .fork_server_client import ForkServer
from .fork_server_main import LENGTH, READY
from .time_budget import TimeBudget

logger = get_logger(__name__)

_START_SECONDS: Final = 120.0
"""Limit for the start of a worker process, including the import of the task's module, which is slow under load."""
_PIECE_BYTES: Final = 256 * 1024
"""Bytes of text decoded at a time."""
_HEAD_BYTES: Final = 64 * 1024
"""Maximum size of an answer without its text."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits on each task and on all tasks together.

    Attributes:
        concurrency: concurrent tasks.
        concurrency_per_user: concurrent tasks of one authenticated user. Without authentication there is one user, who
            may use all slots.
        waiting_per_user: tasks of one user that may wait.
        memory_bytes: address space of the worker process of a task.
        idle_seconds: how long the idle fork server is kept.
    """

    concurrency: int = 4
    concurrency_per_user: int = 2
    waiting_per_user: int = WAITING_PER_USER
    memory_bytes: int = 2**30
    idle_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class Task:
    """A unit of work on untrusted content.

    Attributes:
        module: full name of the module whose `read(content, options)` does the work.
        content: the untrusted bytes.
        seconds: time limit, without the time in the queue.
        text_bytes: maximum size of the answer's text in UTF-8.
        options: JSON options for `read`.
    """

    module: str
    content: bytes
    seconds: float
    text_bytes: int
    options: Mapping[str, Any] = field(default_factory=dict)


class WorkerPool:
    """A pool that runs each task in its own worker process, killed after the time limit.

    No process starts before the first task.
    """

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._queue = FairBudget(
            limits.concurrency,
            limits.concurrency_per_user,
            limits.waiting_per_user,
        )
        self._fork_server: ForkServer | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Future[None]] = set()

    @property
    def fork_server(self) -> ForkServer | None:
        """The fork server; None while it does not run."""
        return self._fork_server

    async def run(self, task: Task, budget: TimeBudget | None = None) -> Mapping[str, str]:
        """Run a task and return what its `read` returned, or the reason for failure as `problem`.

        Problems: those of `read`; `broken` if it raised an exception; `seconds`; `memory`; `characters` for a text over
            `text_bytes`; `budget` if the budget is used up.

        Raises:
            ApiError: 429, too many tasks of this user wait; 503, no worker process can be started.
        """
        try:
            async with self.slot():
                return await self._run(task, budget or TimeBudget(task.seconds))
        finally:
            self._end_when_idle()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot of the pool, for work on untrusted content that runs elsewhere.

        Raises:
            ApiError: 429, too many tasks of this user wait.
        """
        try:
            share = await self._queue.enter()
        except QueueFull:
            limit = self._limits.waiting_per_user
            message = f"More than {limit} of your files, pages and steps of programs wait. Try again later."
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after=5) from None
        try:
            yield
        finally:
            self._queue.leave(share)

    async def _run(self, task: Task, budget: TimeBudget) -> Mapping[str, str]:
        seconds = min(task.seconds, budget.left)
        if seconds <= 0:
            return {"problem": "budget"}
        with self._worker(task.module) as worker:
            try:
                await _begun(worker)
            except (TimeoutError, OSError) as error:
                # This fork server would not start the next worker process either.
                self._end_fork_server()
                raise _unavailable(error) from error
            try:
                with budget.spending():
                    async with asyncio.timeout(seconds):
                        await _send(worker, task, self._limits.memory_bytes, seconds)
                        return await _answer(worker, task.text_bytes)
            except TimeoutError:
                return {"problem": "seconds" if seconds == task.seconds else "budget"}
            except OSError:
                # The kernel ended the process.
                return {"problem": "memory"}

    @contextmanager
    def _worker(self, module: str) -> Iterator[socket.socket]:
        """Start a worker process and yield its socket. Kill the process at the end of the block if it still runs."""
        self._cancel_idle()
        try:
            fork_server = self._fork_server = self._fork_server or ForkServer()
            number, worker = fork_server.start(module)
        except OSError as error:
            self._end_fork_server()
            raise _unavailable(error) from error
        try:
            yield worker
        finally:
            worker.close()
            with suppress(OSError):
                fork_server.stop(number)

    def _end_when_idle(self) -> None:
        self._cancel_idle()
        if self._fork_server and self._queue.is_idle:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._limits.idle_seconds, self._end_if_idle)

    def _cancel_idle(self) -> None:
        if self._idle:
            self._idle.cancel()
            self._idle = None

    def _end_if_idle(self) -> None:
        if self._queue.is_idle:
            self._end_fork_server()

    def _end_fork_server(self) -> None:
        if fork_server := self._fork_server:
            self._fork_server = None
            closing = asyncio.ensure_future(in_thread(fork_server.close))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End all processes."""
        self._cancel_idle()
        self._end_fork_server()
        if self._closing:
            await asyncio.wait(self._closing)


def _unavailable(error: Exception) -> ApiError:
    logger.warning("could not start a worker process (%s: %s)", type(error).__name__, error)
    return ApiError(503, "This server cannot read files or run programs at the moment. Try again.", retry_after=5)


async def _begun(worker: socket.socket) -> None:
    """Wait until the worker process runs.

    Raises:
        OSError: the worker process cannot be started.
        TimeoutError: the start takes too long.
    """
    async with asyncio.timeout(_START_SECONDS):
        if await asyncio.get_running_loop().sock_recv(worker, len(READY)) != READY:
            raise ConnectionError("it ended before it began")


async def _send(worker: socket.socket, task: Task, memory_bytes: int, seconds: float) -> None:
    head = {
        "size": len(task.content),
        "options": dict(task.options),
        "memory_bytes": memory_bytes,
        "seconds": seconds,
    }
    body = json.dumps(head).encode()
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(worker, LENGTH.pack(len(body)) + body)
    # A worker process may have answered and ended already if there is no content: sending nothing would fail then.
    if task.content:
        await loop.sock_sendall(worker, task.content)


async def _answer(worker: socket.socket, text_bytes: int) -> Mapping[str, str]:
    """Read a worker's answer within its limits: untrusted content may have taken control of the process."""
    (length,) = LENGTH.unpack(await _exactly(worker, LENGTH.size))
    if length > _HEAD_BYTES:
        return {"problem": "broken"}
    head = _fields(await _exactly(worker, length))
    if head is None:
        return {"problem": "broken"}
    text = await _text(worker, text_bytes)
    if text is None:
        return {"problem": "characters"}
    return {"text": text, **head}


def _fields(body: bytes) -> Mapping[str, str] | None:
    """Decode a JSON object whose values are all strings; None for anything else."""
    try:
        head = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(head, dict) or not all(isinstance(each, str) for each in head.values()):
        return None
    return head


async def _exactly(worker: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes.

    Raises:
        ConnectionError: the stream ended earlier.
    """
    loop, got = asyncio.get_running_loop(), bytearray()
    while len(got) < size:
        piece = await loop.sock_recv(worker, size - len(got))
        if not piece:
            raise ConnectionError("it ended in the middle of its answer")
        got += piece
    return bytes(got)


async def _text(worker: socket.socket, max_bytes: int) -> str | None:
    """Read the rest as text; None if it is over `max_bytes`."""
    loop, decoder = asyncio.get_running_loop(), codecs.getincrementaldecoder("utf-8")("replace")
    pieces, size = list[str](), 0
    while piece := await loop.sock_recv(worker, _PIECE_BYTES):
        size += len(piece)
        if size > max_bytes:
            return None
        pieces.append(decoder.decode(piece))
    return "".join([*pieces, decoder.decode(b"", final=True)])
