"""Database servers that a test can start and kill."""

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
    """A server with its own port and its data in `folder`; a `with` block starts and stops it."""

    def __init__(self, folder: Path, *options: str, password: str = "", as_root: bool = True) -> None:
        """Prepare a server. `options` are the server's own; with `as_root` False it never runs as root."""
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
    def runs(self) -> bool:
        """Whether the server was started and not killed."""
        return self._child is not None

    @property
    @abstractmethod
    def url(self) -> str:
        """The server's URL, including the password."""

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """The environment variables that configure its template for this server."""

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self.kill()

    def start(self) -> None:
        """Start the server with its port and data, and wait until it accepts connections."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self.command(self._options)
        self._child = Child(command, log=self.folder / "server.log", as_root=self._as_root)
        try:
            self._child.wait_ready(lambda: self.answers() or None, seconds=READY_SECONDS, every=0.02)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill the server with SIGKILL, like a power failure."""
        child, self._child = self._child, None
        if child:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGSTOP)  # so that it starts no more children
            children = _children(child.pid)
            child.kill()
            # They end after the server does, but could still answer once.
            for each in children:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            # Resources held by a child would prevent a restart.
            wait_until(lambda: not any(map(_lives, children)), READY_SECONDS)

    def freeze(self) -> None:
        """Stop all processes of the server with SIGSTOP, like a hanging machine."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the processes."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for each in (self.pid, *_children(self.pid)):
            with suppress(ProcessLookupError):  # PostgreSQL has a process for each connection, which ends with it
                os.kill(each, number)

    @abstractmethod
    def command(self, options: tuple[str, ...]) -> list[str]:
        """Return the command line; create the data directory if needed."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it accepts connections."""


def _children(pid: int) -> list[int]:
    """Return the server's child processes: each of PostgreSQL's has its own process group."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _lives(pid: int) -> bool:
    """Whether the process runs; a zombie (state Z) does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
