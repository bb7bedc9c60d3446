"""The engine's client for an event loop: updates as async iterators, and a restart of an engine that ended."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from ..engine.engine import Metrics, Request, Update
from ..engine.errors import EngineError, QueueFullError, RequestError
from .backoff import StartBackoff
from .frames import BAD_REQUEST, line, pack_request, unpack_metrics, unpack_update
from .launch import EngineConnection, Launcher, Ready
from .settings import EngineSettings
from .step_watch import StepWatch

LINE_BYTES: Final = 1 << 26
PATIENCE_SECONDS: Final = 30.0
"""Seconds for which a request waits for an engine that is starting."""
ASKED_AFTER: Final = 0.1
"""Part of the time limit for a hung engine after which a silent one with work is asked for its metrics."""
AMBIGUOUS: Final = (
    "The schema allows too much at once, and the answer was ended: give its objects fewer optional properties, and its"
    " anyOf, oneOf and allOf fewer parts"
)


class EngineDiedError(EngineError):
    """The engine ended, or stopped answering, during a request."""

    def __init__(self, reason: str = "The gpt-oss engine ended in the middle of its answer") -> None:
        super().__init__(f"{reason}. It is restarting: try again")
        self.reason = reason


class EngineStartingError(EngineError):
    """The engine is not ready yet."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """No more updates of this sequence are wanted."""

    id: str


Mailbox = asyncio.Queue[Update | Cancelled | EngineError]


class _Connection:
    """One connection in one event loop: the mailboxes of requests and the pending metrics."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ready: Ready) -> None:
        self.ready = ready
        self.reader = reader
        self.writer = writer
        self.mailboxes: dict[str, Mailbox] = {}
        self.metrics: dict[int, asyncio.Future[Metrics]] = {}
        self.watch = StepWatch()
        self.open = True
        self.death = EngineDiedError()

    def handle(self, frame: dict[str, Any]) -> None:
        match frame:
            case {"updates": updates}:
                for raw in updates:
                    self.deliver(raw[0], unpack_update(raw))
            case {"refused": {"ids": [first, *_], "kind": kind, "message": message}}:
                # All sequences of a request share a mailbox.
                self.deliver(first, RequestError(message) if kind == BAD_REQUEST else QueueFullError(message))
            case {"metrics": raw, "tag": tag}:
                metrics = unpack_metrics(raw)
                self.watch.observe(metrics)
                future = self.metrics.pop(tag, None)
                if future is not None and not future.done():
                    future.set_result(metrics)
            case {"failed": sentence}:
                self.death = EngineDiedError(sentence)  # it ends, and so does the connection

    def deliver(self, name: str, news: "Update | Cancelled | EngineError") -> None:
        """Deliver to a mailbox. Updates of a cancelled request have none and are dropped."""
        mailbox = self.mailboxes.get(name)
        if mailbox is not None:
            mailbox.put_nowait(news)

    def fail(self) -> None:
        """Close the connection and fail everything that waits on it."""
        self.open = False
        self.writer.close()
        for mailbox in self.mailboxes.values():
            mailbox.put_nowait(self.death)
        for future in self.metrics.values():
            if not future.done():
                future.set_exception(self.death)
        self.metrics.clear()


class EngineClient:
    """Call launch() or start() first, from any thread; all other methods belong to one event loop.

    stall_seconds: an engine with work that does not answer a question, or computes no step, for this long is considered
    hung, and killed.
    patience_seconds: for so long a call waits for an engine that is starting.
    clock: of the waits after failed starts.
    """

    def __init__(
        self,
        settings: EngineSettings,
        stall_seconds: float = 300.0,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stall_seconds = stall_seconds
        self._patience_seconds = patience_seconds
        self._stopped = threading.Event()
        self._launcher = Launcher(settings, self._stopped.is_set)
        self._launching: Future[EngineConnection] | None = None
        self._backoff = StartBackoff(clock)
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._tags = count()

    def launch(self) -> None:
        """Start the engine; return when it loads its weights, with its settings, headers and memory checked.

        Blocks, so call it in a thread. EngineError has the reason of a failure.
        """
        launching = self._launching = self._launcher.launch()
        launching.add_done_callback(lambda _: self._launcher.checked.set())
        self._launcher.checked.wait()
        if launching.done():
            launching.result()

    def start(self) -> Ready:
        """Start the engine, and wait until it is ready. Blocks, so call it in a thread."""
        self.launch()
        assert self._launching is not None
        return self._launching.result().ready

    async def generate(self, request: Request) -> AsyncGenerator[Update]:
        """Yield the updates of all sequences of a request as they arrive.

        RequestError, QueueFullError: refused, or ended by its grammar. EngineStartingError: it is not ready yet.
        EngineDiedError: the engine ended. Closing the iterator cancels.
        """
        connection = await self._connected()
        mailbox: Mailbox = asyncio.Queue()
        unfinished = set(request.ids)
        connection.mailboxes |= dict.fromkeys(request.ids, mailbox)
        try:
            connection.writer.write(line({"generate": pack_request(request)}))
            while unfinished:
                news = await mailbox.get()
                if isinstance(news, EngineError):
                    unfinished.clear()
                    raise news
                if isinstance(news, Cancelled) or news.finish is not None:
                    unfinished.discard(news.id)
                if isinstance(news, Update):
                    if news.finish == "grammar":
                        raise RequestError(AMBIGUOUS)
                    yield news
        finally:
            for name in request.ids:
                del connection.mailboxes[name]
            if unfinished and connection.open:
                connection.writer.write(line({"cancel": sorted(unfinished)}))

    async def ready(self) -> Ready:
        """Return the ready message of the current engine."""
        return (await self._connected()).ready

    def cancel(self, name: str) -> None:
        """Cancel one sequence of a request; no more updates of it follow."""
        connection = self._connection
        if connection is not None and connection.open:
            connection.writer.write(line({"cancel": [name]}))
            connection.deliver(name, Cancelled(name))

    def stalled_seconds(self) -> float:
        """Return for how long the engine has answered without computing a step for its requests, as far as is known."""
        return self._connection.watch.seconds if self._connection is not None else 0.0

    async def metrics(self) -> Metrics:
        """Return the engine's metrics."""
        connection = await self._connected()
        tag = next(self._tags)
        future: asyncio.Future[Metrics] = asyncio.get_running_loop().create_future()
        connection.metrics[tag] = future
        connection.writer.write(line({"metrics": tag}))
        return await future

    @property
    def context(self) -> int | None:
        """The maximum length of a sequence, once an engine has been ready."""
        if self._connection is not None:
            return self._connection.ready.context
        launching = self._launching
        if launching is None or not launching.done() or launching.exception() is not None:
            return None
        return launching.result().ready.context

    def starting(self) -> str | None:
        """Say how far the engine is, and why it is starting again; None if it is not starting."""
        launching = self._connecting or self._launching
        if (self._connection is not None and self._connection.open) or launching is None or launching.done():
            return None
        progress = self._launcher.progress
        if progress is None:
            activity = "its process has not reported any progress yet"
        else:
            activity = "it is warming up" if progress.is_warm_up else "it is loading the weights"
            activity += f", {progress.amounts}"
        if self._backoff.error is not None:
            return f"{self._backoff.error}. The engine is starting again: {activity}"
        if self._connection is None:
            return f"The gpt-oss engine is starting: {activity}"
        return f"{self._connection.death.reason}. It is restarting: {activity}"

    async def close(self) -> None:
        """Disconnect. The engine ends when its last client has disconnected."""
        self._stopped.set()
        for task in (self._reading, self._connecting):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, EngineError):
                    await task
        if self._connection is not None:
            self._connection.fail()
        if self._launching is not None:
            self._launching.add_done_callback(_hang_up)

    async def _connected(self) -> _Connection:
        """Return the open connection. While the engine is starting, all callers share one attempt.

        EngineError: the last start failed, and it is too early for another one.
        """
        if self._connection is not None and self._connection.open:
            return self._connection
        connecting = self._connecting
        if connecting is None or connecting.done():
            self._backoff.check()
            connecting = self._start_connecting()
        try:
            async with asyncio.timeout(self._patience_seconds):
                return await asyncio.shield(connecting)
        except TimeoutError:
            raise EngineStartingError(f"{self.starting() or 'The gpt-oss engine is starting'}. Try again") from None

    def _start_connecting(self) -> asyncio.Task[_Connection]:
        connecting = self._connecting = asyncio.create_task(self._connect())
        connecting.add_done_callback(_retrieve_exception)
        return connecting

    async def _connect(self) -> _Connection:
        launching = self._launching or self._launcher.launch()
        self._launching = None
        try:
            connected = await asyncio.wrap_future(launching)
        except EngineError as error:
            self._backoff.failed(error)
            raise
        self._backoff.succeeded()
        connected.socket.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=connected.socket, limit=LINE_BYTES)
        connection = _Connection(reader, writer, connected.ready)
        for text in connected.rest.splitlines():
            connection.handle(json.loads(text))
        self._connection = connection
        self._reading = asyncio.create_task(self._read(connection))
        return connection

    async def _read(self, connection: _Connection) -> None:
        """Read until the engine disconnects; then restart it at once, so that the next request finds it loading."""
        try:
            while text := await self._next_line(connection):
                connection.handle(json.loads(text))
                if connection.watch.seconds > self._stall_seconds:
                    self._kill(connection, "computed nothing for its requests")
                    break
        except (OSError, ValueError):
            pass  # the connection broke, possibly in the middle of a line
        finally:
            connection.fail()
        if not self._stopped.is_set():
            self._start_connecting()

    async def _next_line(self, connection: _Connection) -> bytes:
        """Return the next line; b"" at the end.

        An engine may have nothing to send while it reads a prompt, or serves other clients. So a silent one is asked.
        """
        seconds, asked = self._stall_seconds * ASKED_AFTER, False
        while True:
            try:
                async with asyncio.timeout(seconds):
                    return await connection.reader.readline()
            except TimeoutError:
                if asked:
                    self._kill(connection, "not answered")
                    return b""
                if connection.mailboxes or connection.metrics:
                    connection.writer.write(line({"metrics": next(self._tags)}))
                    seconds, asked = self._stall_seconds, True

    def _kill(self, connection: _Connection, fault: str) -> None:
        self._launcher.kill(connection.ready.pid)
        connection.death = EngineDiedError(
            f"The gpt-oss engine has {fault} for {self._stall_seconds:g} seconds, and was ended"
        )


def _retrieve_exception(task: asyncio.Task[_Connection]) -> None:
    """Retrieve the exception of a start that no caller waited for, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _hang_up(launching: Future[EngineConnection]) -> None:
    """Close a connection that no event loop has taken over."""
    if launching.exception() is None:
        launching.result().socket.close()
