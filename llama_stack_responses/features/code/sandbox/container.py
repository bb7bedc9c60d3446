"""One container: a Python process that keeps its variables, in a jail, with a folder of files."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from base64 import b64encode
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ....concurrency.child_process import DEVNULL, STDOUT, ChildProcess
from ....concurrency.offloading import in_thread
from ....core.types import Json
from ..network.network import Network
from .captured_output import CapturedOutput
from .channel import Answer, AnswerTooLarge, Channel, ChannelBroken
from .control_group import ControlGroup
from .jail import Jail
from .openat import permit
from .processes import Processes
from .seccomp import open_filter
from .volume import Volume

_POLL_SECONDS: Final = 0.05
"""Polling interval, in seconds, for the resource usage of a container."""

_STILL_SECONDS: Final = 1.0
"""Polling interval, in seconds, that checks for running processes in a container outside a call."""

_SLACK_SECONDS: Final = 5.0
"""Seconds that a command may take to end after its own time limit."""

_START_SECONDS: Final = 60.0
"""Seconds that the Python process may take to start, in addition to those of the call."""

_LIMITS: Final = {"CORE": 0, "NOFILE": 512, "MEMLOCK": 2**16, "MSGQUEUE": 0, "SIGPENDING": 1024}
"""Limits of setrlimit(2) for each process."""

_MAX_LOCKS: Final = 10_000
"""Maximum number of locks on files: 2 MiB of kernel memory."""

_ENDED: Final = "The Python process exited, or the system killed it."
_NOT_KILLED: Final = "Processes that it left running could not be killed."
_TOO_LARGE: Final = "It drew more figures than can be shown."


@dataclass(frozen=True, slots=True)
class Bounds:
    """Resource limits of a container's code.

    Attributes:
        seconds: time limit of one run.
        memory_bytes: memory of all processes together.
        processors: processor time in seconds per second; applies where control groups are available.
        processes: maximum number of processes and threads; enforced by the kernel.
        shown_bytes: how much of the printed output is kept.
        background_seconds: how long processes may run on after their call. After that, all processes are stopped until
            the next call.
    """

    seconds: float
    memory_bytes: int
    processes: int
    processors: float
    shown_bytes: int
    background_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CodeResult:
    """The result of a run.

    Attributes:
        printed: output of the code, truncated if it was too long.
        images: figures drawn by the code, PNG in base64.
        failed: whether the code raised an error.
        stopped: why the run was stopped, if it was; the variables are lost then.
    """

    printed: str
    images: list[str] = field(default_factory=list)
    failed: bool = False
    stopped: str | None = None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a shell command.

    Attributes:
        exit_code: None if the command was stopped at its time limit.
        stopped: why the whole container was stopped, if it was.
    """

    stdout: str
    stderr: str
    exit_code: int | None
    stopped: str | None = None


class Stopped(Exception):  # noqa: N818 (its message is the reason)
    """The code was stopped, and everything else in the container with it."""


@dataclass(slots=True)
class _Inside:
    """The running processes of a container and the connection to them.

    Attributes:
        processes: all processes; None until the Python process has started.
        called: set when the next call begins.
        watcher: the task that watches the processes that the last call left.
    """

    process: ChildProcess
    channel: Channel
    printed: CapturedOutput
    processes: Processes | None = None
    called: asyncio.Event = field(default_factory=asyncio.Event)
    watcher: asyncio.Task[None] | None = None


class Container:
    """A jailed Python process with a folder, for one run at a time. Between runs, its processes are stopped.

    Args:
        jail: isolates the container.
        volume: the container's files.
        bounds: resource limits.
        group: limits the container as a whole, where control groups are available.
        network: lets the code reach hosts; None without a network.
    """

    def __init__(
        self,
        jail: Jail,
        volume: Volume,
        bounds: Bounds,
        group: ControlGroup | None = None,
        network: Network | None = None,
    ) -> None:
        self.volume = volume
        self.group = group
        self.network = network
        self._jail = jail
        self._bounds = bounds
        self._running: _Inside | None = None
        self._lock = asyncio.Lock()

    @property
    def folder(self) -> Path:
        """The container's files, as the server reaches them."""
        return self.volume.data

    async def run(self, code: str) -> CodeResult:
        """Run Python code with the variables of earlier runs."""
        async with self._lock:
            inside = await self._inside()
            inside.printed.begin(self._bounds.shown_bytes)
            try:
                answer = await self._ask(inside, {"code": _text(code)}, self._bounds.seconds)
            except Stopped as stopped:
                [printed] = await self._shown(await self.kill())
                return CodeResult(printed, failed=True, stopped=str(stopped))
            images = await in_thread(lambda: [b64encode(each).decode() for each in answer.parts])
            [printed] = await self._shown(inside.printed.end())
            return CodeResult(printed, images, failed=bool(answer.header.get("failed")))

    async def command(self, command: str, seconds: float, shown_bytes: int) -> CommandResult:
        """Run a shell command next to the Python process."""
        seconds, shown = min(seconds, self._bounds.seconds), min(shown_bytes, self._bounds.shown_bytes)
        request = {"command": _text(command), "seconds": seconds, "max_bytes": shown}
        async with self._lock:
            inside = await self._inside()
            inside.printed.begin(shown)
            try:
                answer = await self._ask(inside, request, seconds + _SLACK_SECONDS)
            except Stopped as stopped:
                [printed] = await self._shown(await self.kill())
                return CommandResult("", printed, None, str(stopped))
            out, err, *_ = [each[:shown].decode(errors="replace") for each in (*answer.parts, b"", b"")]
            stdout, stderr = await self._shown(out, err)
        exit_code = answer.header.get("exit_code")
        return CommandResult(stdout, stderr, exit_code if isinstance(exit_code, int) else None)

    async def _shown(self, *outputs: str) -> Sequence[str]:
        """Return outputs without the secrets that a host may have returned; the last one with what was refused."""
        return await self.network.shown(*outputs) if self.network else outputs

    async def kill(self) -> str:
        """Kill all processes and return the last output. The files stay."""
        inside, self._running = self._running, None
        if inside is None:
            return ""
        await inside.process.end()
        if self.network:
            await self.network.end()
        inside.called.set()
        if inside.watcher:
            await asyncio.wait([inside.watcher])
        inside.channel.close()
        printed = inside.printed.end()
        inside.printed.close()
        return printed

    async def _inside(self) -> _Inside:
        """Return the running processes; start them if there are none."""
        if self._running and self._running.watcher:
            self._running.called.set()
            await asyncio.wait([self._running.watcher])
        if self._running and self._running.process.returncode is not None:
            await self.kill()
        self._running = self._running or await self._start()
        return self._running

    async def _start(self) -> _Inside:
        network = await self.network.prepare() if self.network else None
        ours, theirs = socket.socketpair()
        bounds, printed, seccomp = self._bounds, CapturedOutput(), open_filter(network=self.network is not None)
        limits = {**_LIMITS, "AS": bounds.memory_bytes, "FSIZE": self.volume.capacity.bytes, "NPROC": bounds.processes}
        volume = self.volume
        with suppress(OSError):
            # Its Python starts in this folder, which earlier code may have closed.
            permit(volume.data)
        passed = [theirs.fileno(), *(() if seccomp is None else (seccomp,))]
        arguments = json.dumps(limits), str(theirs.fileno())
        passed += network.files.values() if network else ()
        try:
            process = ChildProcess(
                self._jail.command(
                    volume.folder,
                    *arguments,
                    namespaces=volume.namespaces,
                    seccomp=seccomp,
                    group=self.group.folder if self.group else None,
                    network=network,
                ),
                stdin=DEVNULL,
                stdout=printed.inlet,
                stderr=STDOUT,
                pass_fds=(*passed, *volume.namespaces),
                env={},
            )
        finally:
            for descriptor in (*passed[1:], printed.inlet):
                os.close(descriptor)
            theirs.close()
        return _Inside(process, Channel(ours), printed)

    async def _ask(self, inside: _Inside, request: Json, seconds: float) -> Answer:
        """Send a request inside and wait for the answer. Kill the processes if the caller is cancelled.

        Raises:
            Stopped: a limit was exceeded, or the Python process ended.
        """
        oom_kills = self._kills()
        try:
            processes = await self._handshake(inside)
            if refused := await in_thread(self.volume.begin):
                raise Stopped(refused)
            processes.resume()
            with self._watched(inside, processes) as watching:
                answer = await _within(seconds, inside.channel.request(request), watching)
            await self._leave(inside, processes)
        except asyncio.CancelledError:
            await self.kill()
            raise
        except ChannelBroken:
            raise Stopped(self._memory() if self._kills() > oom_kills else _ENDED) from None
        except AnswerTooLarge:
            raise Stopped(_TOO_LARGE) from None
        return answer

    async def _handshake(self, inside: _Inside) -> Processes:
        """Wait until the inner Python process has started, and return the container's processes.

        Raises:
            Stopped: it did not start in time.
        """
        if inside.processes is None:
            try:
                async with asyncio.timeout(_START_SECONDS):
                    inside.processes, listeners = await inside.channel.handshake()
            except TimeoutError:
                raise Stopped(f"The Python process did not start within {_START_SECONDS:g} seconds.") from None
            if self.network:
                self.network.begin(self.group.folder if self.group else None, *listeners)
        elif self.network:
            self.network.begin_call()
        return inside.processes

    async def _leave(self, inside: _Inside, processes: Processes) -> None:
        """End the processes that the call left running, now or after their time, and watch them until the next call.

        Raises:
            Stopped: they cannot be ended individually.
        """
        inside.called.clear()
        inside.watcher = None
        if self._bounds.background_seconds > 0:
            inside.watcher = asyncio.create_task(self._watch_background(inside, processes))
        elif left := await in_thread(self._settled, processes):
            raise Stopped(left)
        else:
            inside.watcher = asyncio.create_task(self._keep_still(inside, processes))

    def _settled(self, processes: Processes) -> str | None:
        """End the processes that a call left. Return why this failed, or the limit that the call exceeded."""
        return self.volume.excess() if processes.settle() else _NOT_KILLED

    async def _watch_background(self, inside: _Inside, processes: Processes) -> None:
        """Watch the processes that the call left, until the next call or their time limit."""
        with self._watched(inside, processes) as watching:
            calling = asyncio.create_task(inside.called.wait())
            seconds = self._bounds.background_seconds
            await asyncio.wait([calling, watching], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            calling.cancel()
            overused = watching.done()
        if not overused and not inside.called.is_set():
            overused = await in_thread(self._settled, processes) is not None
        if overused:
            await inside.process.end()
        else:
            await self._keep_still(inside, processes)

    async def _keep_still(self, inside: _Inside, processes: Processes) -> None:
        """End the container if a process runs before the next call: code may have found a way to be resumed."""
        while not inside.called.is_set() and inside.process.returncode is None:
            if not await in_thread(processes.are_still):
                await inside.process.end()
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(inside.called.wait(), _STILL_SECONDS)

    @contextmanager
    def _watched(self, inside: _Inside, processes: Processes) -> Iterator[asyncio.Task[str]]:
        """Yield a task that ends, with the reason, when the container exceeds a limit."""
        watching = asyncio.create_task(self._watch(inside.process, processes))
        try:
            yield watching
        finally:
            watching.cancel()

    async def _watch(self, process: ChildProcess, processes: Processes) -> str:
        """Wait until the container exceeds a limit, and return which."""
        oom_kills = self._kills()
        while process.returncode is None:
            began = time.monotonic()
            if used := await in_thread(self._overuse, processes):
                return used
            await asyncio.sleep(max(_POLL_SECONDS, 2 * (time.monotonic() - began)))
        return self._memory() if self._kills() > oom_kills else _ENDED

    def _memory(self) -> str:
        return f"It used more than {self._bounds.memory_bytes // 2**20} MiB of memory."

    def _kills(self) -> int:
        """Return how often the kernel killed the container for its memory."""
        return self.group.oom_kills() if self.group else 0

    def _overuse(self, processes: Processes) -> str | None:
        bounds = self._bounds
        if processes.memory_bytes(bounds.memory_bytes) > bounds.memory_bytes:
            return self._memory()
        if processes.has_more_locks(_MAX_LOCKS):
            return f"It held more than {_MAX_LOCKS:,} locks on files."
        return self.volume.excess()


async def _within(seconds: float, asking: Coroutine[None, None, Answer], watching: asyncio.Task[str]) -> Answer:
    """Return the answer, unless the time limit passes or the container exceeds a limit first."""
    answering = asyncio.create_task(asking)
    try:
        await asyncio.wait([answering, watching], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        raise Stopped(watching.result() if watching.done() else f"It did not end within {seconds:g} seconds.")
    finally:
        answering.cancel()


def _text(code: str) -> str:
    """Replace unpaired surrogates, which JSON may contain, with question marks."""
    return code.encode(errors="replace").decode()
