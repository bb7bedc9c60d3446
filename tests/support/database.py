"""Database servers that a test starts and kills."""

import os
import signal
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.support.process import Child, free_port
from tests.support.waiting import wait_until

READY_SECONDS = 90.0


class DatabaseServer(ABC):
    """A server on a port of its own, with its data in `folder`, started by a `with` block."""

    def __init__(self, folder: Path, *options: str, password: str = "", as_root: bool = True) -> None:
        """Nothing runs yet. `options` are the server's own; with `as_root` False it never runs as root."""
        self.port = free_port()
        self.folder = folder
        self.password = password
        self._options = options
        self._as_root = as_root
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """The server's process id."""
        if self._child is None:
            raise RuntimeError("the server does not run")
        return self._child.pid

    @property
    @abstractmethod
    def url(self) -> str:
        """Its address, with the password."""

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """What leads the template for its kind to it."""

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.kill()

    def start(self) -> None:
        """Start it on its port and its data, and wait until it takes connections."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self.command(self._options)
        self._child = Child(command, log=self.folder / "server.log", as_root=self._as_root)
        try:
            self._child.wait_ready(lambda: self.answers() or None, seconds=READY_SECONDS, every=0.02)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL, as a machine that loses power."""
        child, self._child = self._child, None
        if child:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGSTOP)  # so that it starts no more
            children = _children(child.pid)
            child.kill()
            # They end by themselves when the server does, but may answer once more before that.
            for each in children:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            # What one of them still holds keeps the server from being started again.
            wait_until(lambda: not any(map(_lives, children)), READY_SECONDS)

    def freeze(self) -> None:
        """Stop it in the middle of whatever it does, with all its processes, as a machine that hangs."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on where it was."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for each in (self.pid, *_children(self.pid)):
            os.kill(each, number)

    @abstractmethod
    def command(self, options: tuple[str, ...]) -> list[str]:
        """The command line; makes the data if need be."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it takes connections."""


def _children(pid: int) -> list[int]:
    """The processes of a server beside its first: each of PostgreSQL's has a group of its own."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _lives(pid: int) -> bool:
    """Whether the process has not ended; one that nobody has asked for has a last entry, Z."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
