"""The connection of this process to a fork server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

from .fork_server_main import FRAME, START, STOP

_PROGRAM: Final = Path(__file__).with_name("fork_server_main.py")
_PATIENCE_SECONDS: Final = 5.0
"""Seconds that a process gets to exit after its command socket closes, before it is killed."""


class ForkServer:
    """A running fork server. It ends with its last reference at the latest, or when the server is gone.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _started(theirs)
            except BaseException:
                ours.close()
                raise
        # A full buffer means that the process no longer takes commands.
        ours.setblocking(False)
        self._commands = ours
        self._count = 0
        self._end = weakref.finalize(self, _ended, self._process, ours)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def start(self, module: str) -> tuple[int, socket.socket]:
        """Start a worker process for a task of this module; return the task's number and the server's end of its
        socket.

        Raises:
            OSError: the fork server is gone or stuck.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._count += 1
                self._send(START, self._count, module.encode(), [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        return self._count, ours

    def stop(self, number: int) -> None:
        """Kill the worker process of a task if it still runs.

        Raises:
            OSError: the fork server is gone or stuck.
        """
        self._send(STOP, number, b"", [])

    def _send(self, kind: bytes, number: int, name: bytes, descriptors: list[int]) -> None:
        frame = FRAME.pack(kind, number, name)
        sent = socket.send_fds(self._commands, [frame], descriptors) if descriptors else self._commands.send(frame)
        if sent != len(frame):
            raise BrokenPipeError("The worker process takes only a part of a command.")

    def close(self) -> None:
        """End the fork server and all its worker processes, and wait for their exit."""
        self._end()


def _started(commands: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 (the command is our own)
        [sys.executable, "-I", str(_PROGRAM), json.dumps([each for each in sys.path if each])],
        stdin=commands.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
        # Ctrl-C must reach only the server, which may still wait for answers.
        start_new_session=True,
    )


def _ended(process: subprocess.Popen[bytes], commands: socket.socket) -> None:
    commands.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE_SECONDS)
        return
    process.kill()
    process.wait()
