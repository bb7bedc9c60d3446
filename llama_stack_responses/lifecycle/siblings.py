"""The server processes beside this one, which one command has started behind one port (`server.workers`).

The kernel gives each connection to any of them. What a server says of itself must not depend on which: so they ask each
other. Each process listens on a Unix socket in a folder of this user that is named after their parent process:

    0.lock, 0.sock    held and listened on by process 0; the kernel releases both when it ends
    complete          all processes have run at the same time
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import orjson

from ..concurrency.offloading import in_thread
from ..logs import get_logger

logger = get_logger(__name__)

_SECONDS: Final = 2.0
"""Time limit of an answer."""

_MAX_QUESTION_BYTES: Final = 65_536
_MAX_ANSWER_BYTES: Final = 16 * 2**20
_COMPLETE: Final = "complete"
_PREFIX: Final = "llama-stack-responses-processes"

type Answers = Mapping[str, Callable[..., Awaitable[Any]]]
"""The questions that a process answers: each function gets the arguments and returns JSON."""


def shared_folder(parent: int) -> Path:
    """Return where the processes of a parent process, given its id, meet; it exists once the first one has started."""
    return Path(tempfile.gettempdir()) / f"{_PREFIX}-{os.getuid()}-{parent}"


class Siblings:
    """This process among the others.

    Attributes:
        configured: the number of processes.
        number: the number of this process; None before the start, and if it is the only one.
    """

    def __init__(self) -> None:
        self.configured = 1
        self.number: int | None = None
        self._answers: Answers = {}
        self._folder = Path()
        self._lock: int | None = None
        self._server: asyncio.Server | None = None
        self._was_complete = False

    async def start(self, configured: int, answers: Answers, folder: Path | None = None) -> None:
        """Take part; alone, if there are no others.

        Args:
            configured: the number of processes.
            answers: what this process answers.
            folder: where they meet.
        """
        self.configured, self._answers = configured, answers
        if configured < 2:
            return
        self._folder = folder or shared_folder(os.getppid())
        try:
            await in_thread(self._enter)
            self._server = await asyncio.start_unix_server(self._serve, self._socket(self._own))
        except OSError as error:
            logger.error("could not join the other processes of this server, each reports for itself: %s", error)
            self.number = None

    @property
    def _own(self) -> int:
        assert self.number is not None
        return self.number

    @property
    def complete(self) -> bool:
        """Whether all processes have run at the same time, as they do some seconds after the start."""
        return self.number is None or (self._folder / _COMPLETE).exists()

    async def ask(self, question: str, *arguments: Any) -> dict[int, Any]:
        """Return what the others answer, by their number; those that do not answer in time are left out."""
        if self.number is None:
            return {}
        others = [each for each in self._numbers() if each != self.number]
        asked = orjson.dumps([question, *arguments]) + b"\n"
        answers = await asyncio.gather(*(self._answer_of(each, asked) for each in others))
        found = {each: answer for each, answer in zip(others, answers, strict=True) if answer is not None}
        if not self._was_complete and len(found) + 1 >= self.configured:
            self._was_complete = True
            (self._folder / _COMPLETE).touch()
        return found

    async def stop(self) -> None:
        """Leave the others."""
        number, self.number = self.number, None
        if number is None:
            return
        if self._server:
            self._server.close()
        self._socket(number).unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
        await in_thread(_remove_if_empty, self._folder)

    def _numbers(self) -> list[int]:
        with suppress(OSError):
            return sorted(int(path.stem) for path in self._folder.glob("*.sock"))
        return []

    def _socket(self, number: int) -> Path:
        return self._folder / f"{number}.sock"

    def _enter(self) -> None:
        """Take the lowest free number. A process that ends and its successor may run at the same time."""
        _remove_left_behind(self._folder.parent)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        found = self._folder.lstat()
        if self._folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise OSError(f"{self._folder} belongs to another user, or other users may write to it")
        for number in range(2 * self.configured):
            lock = os.open(self._folder / f"{number}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.number, self._lock = number, lock
                self._socket(number).unlink(missing_ok=True)
                return
            os.close(lock)
        raise OSError(f"all numbers in {self._folder} are taken")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one question."""
        try:
            async with asyncio.timeout(_SECONDS):
                question, *arguments = orjson.loads(await reader.readline())
                answer = await self._answers[question](*arguments)
                writer.write(await in_thread(orjson.dumps, answer))
                await writer.drain()
        except (OSError, TimeoutError, ValueError, LookupError) as error:
            logger.debug("another process of this server got no answer: %s", error)
        finally:
            writer.close()

    async def _answer_of(self, number: int, asked: bytes) -> Any:
        try:
            async with asyncio.timeout(_SECONDS), _Connection(self._socket(number)) as connection:
                return await connection.ask(asked)
        except (OSError, TimeoutError, ValueError):
            return None


class _Connection:
    """A connection to another process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_unix_connection(self._path, limit=_MAX_QUESTION_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def ask(self, question: bytes) -> Any:
        self._writer.write(question)
        answer = bytearray()
        while piece := await self._reader.read(_MAX_QUESTION_BYTES):
            answer += piece
            if len(answer) > _MAX_ANSWER_BYTES:
                raise ValueError("the answer is too long")
        return await in_thread(orjson.loads, bytes(answer))


def _remove_if_empty(folder: Path) -> None:
    """Remove the folder after the last process."""
    if not any(folder.glob("*.sock")):
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_behind(parent: Path) -> None:
    """Remove the folders of processes that were killed."""
    for folder in parent.glob(f"{_PREFIX}-{os.getuid()}-*"):
        pid = folder.name.rpartition("-")[2]
        if pid.isdecimal() and not _is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
