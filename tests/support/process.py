"""Child processes that never outlive a test run, and the ports they listen on."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

LAUNCHER = Path(__file__).with_name("parent_death_signal.py")
GUARD = Path(__file__).with_name("group_guard.py")
PR_SET_PDEATHSIG = 1
GRACE = 60.0  # seconds between SIGTERM and SIGKILL; a healthy server ends far sooner


class StartError(RuntimeError):
    """A process ended, or did not become ready in time."""


class Process(Protocol):
    """What a child needs of `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; subprocess.TimeoutExpired if the process still runs after `timeout` seconds."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Send a signal, unless the process has ended."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM."""
        ...


class Guard:
    """The process that ends the groups of children that this process leaves. It starts with the first child.

    The kernel kills only the first process of such a group, which may be a shell.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe: int | None = None

    def add(self, group: int) -> None:
        """Add a group that has started."""
        self._write(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Remove a group that has ended."""
        self._write(f"-{group}\n")

    def _write(self, line: str) -> None:
        with self._lock:
            if self._pipe is None:
                self._pipe = self._start()
            os.write(self._pipe, line.encode())

    def _start(self) -> int:
        taken, put = os.pipe()
        nowhere = [(os.POSIX_SPAWN_OPEN, each, os.devnull, os.O_WRONLY, 0) for each in (1, 2)]
        files = [(os.POSIX_SPAWN_DUP2, taken, 0), *nowhere]
        command = [sys.executable, "-I", "-S", str(GUARD)]
        # In its own session: Ctrl-C must not reach it.
        os.posix_spawn(sys.executable, command, os.environ, file_actions=files, setsid=True)
        os.close(taken)
        return put


_guard = Guard()


class Child:
    """A command in its own process group, with its output in a file, bound to the thread that started it.

    Start it from the main thread: the kernel kills it when the thread that forked it ends, not only when the process
    does. What is left of its group then gets SIGTERM.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        as_root: bool = True,
    ) -> None:
        """Start `command` with exactly `env` (None: this process's environment); its output is appended to `log`.

        With `as_root` False, it runs as another user if this process is root.
        """
        with log.open("ab") as output:
            popen = subprocess.Popen(
                killed_with_parent(command, as_root=as_root),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
            )
        self._adopt(popen, log)

    def _adopt(self, process: Process, log: Path) -> None:
        """Take over a process that leads its group and writes to `log`."""
        self.log = log
        self._killed = False
        self._process = process
        _guard.add(process.pid)

    @property
    def pid(self) -> int:
        """The process id, which is also the group's id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status: None while it runs, a negative signal number if a signal ended it."""
        return self._process.poll()

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of its output."""
        text = self.log.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def wait_ready[Answer](self, probe: Callable[[], Answer | None], *, seconds: float, every: float = 0.05) -> Answer:
        """Return the first answer of `probe` other than None; StartError if the process ends or `seconds` pass."""
        deadline = time.monotonic() + seconds
        while (answer := probe()) is None:
            if self.returncode is not None:
                raise StartError(f"ended with {self.returncode} before it was ready; its output ends:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise StartError(f"not ready after {seconds:g} s; its output ends:\n{self.tail()}")
            time.sleep(every)
        return answer

    def wait(self, seconds: float) -> int:
        """Return the exit status; subprocess.TimeoutExpired, and the group is killed, if it still runs after that time."""
        try:
            self._process.wait(seconds)
        finally:
            status = self.kill()
        return status

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process only."""
        self._process.send_signal(number)

    def stop(self, grace: float = GRACE) -> int:
        """Send SIGTERM, then SIGKILL to the whole group after `grace` seconds; return the exit status."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        return self.kill()

    def kill(self) -> int:
        """Send SIGKILL to the whole group, so that no worker outlives it; return the exit status."""
        if not self._killed:  # only once: later the id may belong to another process
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            _guard.remove(self.pid)
        self._killed = True
        return self._process.wait()


def end_with_parent() -> None:
    """Ask the kernel to send this process SIGTERM when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def killed_with_parent(command: Sequence[str], *, as_root: bool = True) -> list[str]:
    """Return the command line that binds `command` to the life of this process."""
    user = "same" if as_root else "ordinary"
    return [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), user, *command]


def free_port() -> int:
    """Return a port on 127.0.0.1 that no other process is assigned for the next minute.

    A connection is opened and closed on it, so the port stays in TIME_WAIT: the kernel does not assign it to processes
    that bind to port 0, but a server that names it (with SO_REUSEADDR, as asyncio and uvicorn do) can listen at once.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        address: tuple[str, int] = listener.getsockname()
        with socket.create_connection(address):
            accepted, _ = listener.accept()
            accepted.close()  # the side that closes first keeps the port in TIME_WAIT
    return address[1]
