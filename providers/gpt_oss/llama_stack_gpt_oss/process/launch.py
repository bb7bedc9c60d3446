"""Connecting to the engine process. The first client starts it, the others connect to the same one."""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..engine.errors import EngineError
from ..engine.progress import Progress
from .frames import unpack_progress
from .server import ALREADY_RUNNING
from .settings import EngineSettings, address

RETRY_SECONDS: Final = 0.05
ENDED_AT_START: Final = "The gpt-oss engine ended while it was starting; its last lines in the server's log say why"


@dataclass(frozen=True, slots=True)
class Ready:
    """The ready message of an engine."""

    pid: int
    context: int
    pages: int  # blocks of the KV cache


@dataclass(slots=True)
class EngineConnection:
    """A connection to a ready engine, and the bytes received after its ready message."""

    socket: socket.socket
    ready: Ready
    rest: bytes


class _Child:
    """An engine process. It may outlive this process while others use it."""

    def __init__(self, arguments: list[str]) -> None:
        nothing = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        # A new session: a signal to the server's process group must not end the engine while the server still needs it.
        self._pid = os.posix_spawn(arguments[0], arguments, os.environ, file_actions=nothing, setsid=True)
        self._status: int | None = None
        self.served = False

    def poll(self, wait: bool = False) -> int | None:
        """Return the exit status, negative for a signal; None while the process runs."""
        if self._status is None:
            pid, status = os.waitpid(self._pid, 0 if wait else os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status


class Launcher:
    """Starts and connects to engines. All calls block, so use a thread. It reaps the process that it started."""

    def __init__(self, settings: EngineSettings, cancelled: Callable[[], bool] = lambda: False) -> None:
        self._settings = settings
        self._cancelled = cancelled
        self._child: _Child | None = None
        self.progress: Progress | None = None  # of an engine that is starting
        self.checked = threading.Event()  # an engine has reported progress, so what can be checked before is right

    def launch(self) -> Future[EngineConnection]:
        """Connect in a thread of its own, which outlives the event loop that the caller may be in."""
        launching = Future[EngineConnection]()

        def run() -> None:
            launching.set_running_or_notify_cancel()  # from here on, it cannot be cancelled
            try:
                launching.set_result(self.connect())
            except BaseException as error:  # noqa: BLE001 -- it is raised again where the result is read
                launching.set_exception(error)

        threading.Thread(target=run, name="gpt-oss-launch", daemon=True).start()
        return launching

    def connect(self) -> EngineConnection:
        """Wait until the engine is ready, without a time limit; EngineError if it fails."""
        self.progress = None
        while not self._cancelled():
            connection = self._try()
            if connection is None:
                self._ensure_child()
                time.sleep(RETRY_SECONDS)
                continue
            ready = self._wait_ready(connection)
            if ready is not None:
                if self._child is not None:
                    self._child.served = True
                return ready
        raise EngineError("The server stops")

    def kill(self, pid: int) -> None:
        """Kill an engine that no longer answers."""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _try(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with address(self._settings.socket) as name:
                connection.connect(name)
        except OSError:
            connection.close()
            return None
        return connection

    def _ensure_child(self) -> None:
        if self._child is not None:
            status = self._child.poll()
            if status is None:
                return
            served, self._child = self._child.served, None
            if not served and status != ALREADY_RUNNING:
                raise EngineError(ENDED_AT_START)
        command = [sys.executable, "-m", "llama_stack_gpt_oss.process.server", self._settings.to_json()]
        try:
            Path(self._settings.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._child = _Child(command)
        except OSError as error:
            raise EngineError(f"The process of the gpt-oss engine cannot be started: {error}") from error

    def _wait_ready(self, connection: socket.socket) -> EngineConnection | None:
        """Wait for the ready message; None if the engine ends before it, so that the caller tries again."""
        received = b""
        while True:
            chunk = self._receive(connection)
            if not chunk:
                connection.close()
                return None
            *lines, received = (received + chunk).split(b"\n")
            for number, text in enumerate(lines):
                frame: dict[str, Any] = json.loads(text)
                if "failed" in frame:
                    connection.close()
                    self._collect()
                    raise EngineError(frame["failed"])
                if "loading" in frame:
                    self.progress = unpack_progress(frame["loading"])
                    self.checked.set()
                if "ready" in frame:
                    rest = b"".join(line + b"\n" for line in lines[number + 1 :]) + received
                    return EngineConnection(connection, Ready(**frame["ready"]), rest)

    def _receive(self, connection: socket.socket) -> bytes:
        connection.settimeout(1.0)
        while not self._cancelled():
            try:
                return connection.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                return b""
        return b""

    def _collect(self) -> None:
        """Wait for the exit of the child, which follows its error message."""
        if self._child is not None:
            self._child.poll(wait=True)
            self._child = None
