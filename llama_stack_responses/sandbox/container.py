"""One container: a Python that keeps its variables, in a jail, with a folder of files."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from .census import resident_bytes
from .folder import disk_bytes
from .jail import Jail
from .seccomp import open_filter

Json = dict[str, Any]

_LOOK: Final = 0.2
"""Seconds between two looks at what a container uses."""

_LARGEST_ANSWER: Final = 32 * 2**20
_SLACK: Final = 5.0
"""Seconds that a command's own end may take longer than the command may."""

_BATCH: Final = 64
"""Reads at a time of what is printed, so that a flood of it starves nobody."""

_ENDED: Final = "Its Python ended, by its own doing or by the system's."


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the code of a container may use.

    Attributes:
        seconds: for one run.
        memory_bytes: all its processes together.
        processes: at most, threads among them; the kernel refuses more.
        file_bytes: one file, and all files of the container together.
        shown_bytes: of what is printed, what is kept.
    """

    seconds: float
    memory_bytes: int
    processes: int
    file_bytes: int
    shown_bytes: int


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a run.

    Attributes:
        printed: what the code printed, cut off if it was too much.
        images: the figures that it drew, PNG in base64.
        failed: whether it raised an error.
        stopped: why it was stopped, if it was; its variables are gone then.
    """

    printed: str
    images: list[str] = field(default_factory=list)
    failed: bool = False
    stopped: str | None = None


@dataclass(frozen=True, slots=True)
class Commanded:
    """What came of a shell command.

    Attributes:
        exit_code: None when it was stopped after its time.
        stopped: why the whole container was stopped, if it was.
    """

    stdout: str
    stderr: str
    exit_code: int | None
    stopped: str | None = None


class Stopped(Exception):  # noqa: N818 (what it says is why)
    """The code was stopped, and everything in the container with it."""


@dataclass(frozen=True, slots=True)
class _Inside:
    """What runs in a container, and how to speak with it."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    printed: _Printed


class Container:
    """A jailed Python with a folder; one run at a time.

    Args:
        jail: shuts it off.
        folder: its files; it must be there.
        bounds: what it may use.
    """

    def __init__(self, jail: Jail, folder: Path, bounds: Bounds) -> None:
        self.folder = folder
        jail.admit(folder)
        self._jail = jail
        self._bounds = bounds
        self._running: _Inside | None = None
        self._turn = asyncio.Lock()

    async def run(self, code: str) -> Ran:
        """Runs Python code behind what ran before."""
        async with self._turn:
            inside = await self._inside()
            inside.printed.begin(self._bounds.shown_bytes)
            try:
                answer = await self._ask(inside, {"code": code}, self._bounds.seconds)
            except Stopped as stopped:
                return Ran(await self.kill(), failed=True, stopped=str(stopped))
            images = [image for image in answer.get("images", ()) if isinstance(image, str)]
            return Ran(inside.printed.end(), images, failed=bool(answer.get("failed")))

    async def command(self, command: str, seconds: float, shown_bytes: int) -> Commanded:
        """Runs a shell command beside the Python."""
        seconds, most = min(seconds, self._bounds.seconds), min(shown_bytes, self._bounds.shown_bytes)
        request = {"command": command, "seconds": seconds, "max_bytes": most}
        async with self._turn:
            inside = await self._inside()
            inside.printed.begin(most)
            try:
                answer = await self._ask(inside, request, seconds + _SLACK)
            except Stopped as stopped:
                return Commanded("", await self.kill(), None, str(stopped))
        exit_code = answer.get("exit_code")
        code = exit_code if isinstance(exit_code, int) else None
        return Commanded(str(answer.get("stdout", "")), str(answer.get("stderr", "")), code)

    async def kill(self) -> str:
        """Ends every process of it, and returns what was printed last; the files stay."""
        inside, self._running = self._running, None
        if inside is None:
            return ""
        with suppress(ProcessLookupError):
            inside.process.kill()
        await inside.process.wait()
        inside.writer.close()
        printed = inside.printed.end()
        inside.printed.close()
        return printed

    async def _inside(self) -> _Inside:
        """What runs inside; it is started if nothing does."""
        if self._running and self._running.process.returncode is not None:
            await self.kill()
        self._running = self._running or await self._start()
        return self._running

    async def _start(self) -> _Inside:
        ours, theirs = socket.socketpair()
        bounds, printed, seccomp = self._bounds, _Printed(), open_filter()
        limits = {"AS": bounds.memory_bytes, "FSIZE": bounds.file_bytes, "NPROC": bounds.processes, "CORE": 0}
        passed = [theirs.fileno(), *(() if seccomp is None else (seccomp,))]
        try:
            process = await asyncio.create_subprocess_exec(
                *self._jail.command(self.folder, seccomp, json.dumps(limits), str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=printed.inlet,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=passed,
                env={},
            )
        finally:
            for descriptor in (*passed[1:], printed.inlet):
                os.close(descriptor)
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=2**16)
        return _Inside(process, reader, writer, printed)

    async def _ask(self, inside: _Inside, request: Json, seconds: float) -> Json:
        """Sends a request inside and waits for the answer; what nobody waits for any more is killed.

        Raises:
            Stopped: it took more than it may.
        """
        try:
            return await self._answer(inside, request, seconds)
        except asyncio.CancelledError:
            await self.kill()
            raise

    async def _answer(self, inside: _Inside, request: Json, seconds: float) -> Json:
        watching = asyncio.create_task(self._watch(inside.process))
        answering = asyncio.create_task(_exchange(inside, request))
        try:
            await asyncio.wait([answering, watching], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return answering.result()
            raise Stopped(watching.result() if watching.done() else f"It did not end within {seconds:g} seconds.")
        finally:
            answering.cancel()
            watching.cancel()

    async def _watch(self, process: asyncio.subprocess.Process) -> str:
        """Waits until the container takes more than it may, and says of what."""
        # What is too much already may be tidied up, but not become more.
        most = max(self._bounds.file_bytes, await asyncio.to_thread(disk_bytes, self.folder))
        while process.returncode is None:
            if used := await asyncio.to_thread(self._overuse, process.pid, most):
                return used
            await asyncio.sleep(_LOOK)
        return _ENDED

    def _overuse(self, pid: int, most_file_bytes: int) -> str | None:
        bounds = self._bounds
        if sum(resident_bytes(pid).values()) > bounds.memory_bytes:
            return f"It used more than {bounds.memory_bytes // 2**20} MiB of memory."
        if disk_bytes(self.folder) > most_file_bytes:
            return f"Its files took more than {bounds.file_bytes // 2**20} MiB."
        return None


async def _exchange(inside: _Inside, request: Json) -> Json:
    body = orjson.dumps(request)
    inside.writer.write(struct.pack("!I", len(body)) + body)
    try:
        await inside.writer.drain()
        length = struct.unpack("!I", await inside.reader.readexactly(4))[0]
        if length > _LARGEST_ANSWER:
            raise Stopped("It drew more than can be shown.")
        answer = orjson.loads(await inside.reader.readexactly(length))
    except (OSError, EOFError, ValueError):
        raise Stopped(_ENDED) from None
    return answer if isinstance(answer, dict) else {}


class _Printed:
    """What comes out of a container: its first bytes are kept, and the rest is counted."""

    def __init__(self) -> None:
        self._pipe, self.inlet = os.pipe()
        self._most = 0
        self._kept = bytearray()
        self._count = 0
        os.set_blocking(self._pipe, False)
        asyncio.get_running_loop().add_reader(self._pipe, self._drain)

    def begin(self, most: int) -> None:
        """Keeps up to `most` bytes of what comes from now on."""
        self._drain()
        self._most, self._kept, self._count = most, bytearray(), 0

    def end(self) -> str:
        """What was kept since `begin`, and how much was not."""
        self._drain()
        text, left = self._kept.decode(errors="replace"), self._count - len(self._kept)
        self._most = 0
        return f"{text}\n... ({left} more bytes)" if left else text

    def close(self) -> None:
        """Hears no more."""
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)

    def _drain(self) -> None:
        for _ in range(_BATCH):
            try:
                data = os.read(self._pipe, 2**16)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self._pipe)
                return
            self._count += len(data)
            self._kept += data[: max(0, self._most - len(self._kept))]
