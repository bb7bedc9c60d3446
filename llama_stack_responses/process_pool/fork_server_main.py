"""The fork server: imports the code of tasks once and forks a worker process for each task.

`fork_server.py` starts it with the server's `sys.path` as an argument. Its standard input is the command socket. It
carries frames of `FRAME`, and with each `START` the socket of the task. A worker process ends with its task, so that
tasks share no state. When the server is gone, the command socket reaches its end, and all processes end.

This file runs as a script. It imports only the standard library and the modules of tasks.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

Json = dict[str, Any]
Task = Callable[[bytes, Json], dict[str, str]]

FRAME: Final = struct.Struct("!cQ247s")
"""A command: its kind, the task number, and for `START` the name of the task's module, padded with zeros."""

LENGTH: Final = struct.Struct("!I")
"""The length prefix of the JSON of a request or an answer."""

START: Final = b"+"
STOP: Final = b"-"
READY: Final = b"+"
"""The first byte from a worker process. The time limit of its task starts here."""


def main(path: list[str]) -> None:
    """Serve commands until the command socket is at its end."""
    sys.path[:] = path
    logging.disable()
    with socket.socket(fileno=0) as commands:
        _serve(commands)


def _serve(commands: socket.socket) -> None:
    workers: dict[int, int] = {}
    try:
        while command := _command(commands):
            (kind, number, name), descriptors = command
            _reap(workers)
            if kind == START:
                with socket.socket(fileno=descriptors[0]) as task:
                    if (pid := _fork(name.rstrip(b"\0").decode(), task, commands)) is not None:
                        workers[number] = pid
            elif number in workers:
                _kill(workers.pop(number))
    finally:
        for pid in workers.values():
            _kill(pid)


def _command(commands: socket.socket) -> tuple[tuple[bytes, int, bytes], list[int]] | None:
    """Read the next command and the descriptors sent with it; None at the end of the socket."""
    frame, given = b"", list[int]()
    while len(frame) < FRAME.size:
        part, descriptors, _, _ = socket.recv_fds(commands, FRAME.size - len(frame), 1)
        if not part:
            return None
        frame, given = frame + part, given + descriptors
    return FRAME.unpack(frame), given


def _reap(workers: dict[int, int]) -> None:
    for number, pid in list(workers.items()):
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            del workers[number]


def _kill(pid: int) -> None:
    # The process has not been reaped, so its pid has not been reused.
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _fork(module: str, task: socket.socket, commands: socket.socket) -> int | None:
    """Fork the worker process of a task; None if the task's module cannot be imported."""
    try:
        read: Task = import_module(module).read
    except Exception:  # noqa: BLE001 (the server sees the end of the socket and logs the failure)
        return None
    # A garbage collection in a worker process would copy all pages of the fork server.
    gc.freeze()
    if pid := os.fork():
        return pid
    with suppress(BaseException):
        commands.close()
        _work(read, task)
    os._exit(0)


def _work(read: Task, task: socket.socket) -> None:
    task.sendall(READY)
    with task.makefile("rb") as stream:
        request: Json = json.loads(stream.read(LENGTH.unpack(stream.read(LENGTH.size))[0]))
        content = stream.read(request["size"])
    _restrict(resource.RLIMIT_AS, request["memory_bytes"])
    # The server enforces the time limit. This limit ends the process if the server no longer can.
    _restrict(resource.RLIMIT_CPU, math.ceil(request["seconds"]) + 1)
    _restrict(resource.RLIMIT_FSIZE, 0)
    _restrict(resource.RLIMIT_CORE, 0)
    head = answer(read, content, request["options"])
    text = head.pop("text", "").encode()
    body = json.dumps(head).encode()
    task.sendall(LENGTH.pack(len(body)) + body)
    task.sendall(text)


def _restrict(what: int, limit: int) -> None:
    # Not every system supports a limit on a process's memory.
    with suppress(ValueError, OSError):
        resource.setrlimit(what, (limit, limit))


def answer(read: Task, content: bytes, options: Json) -> dict[str, str]:
    """Run a task and return its answer, or the problem if it raises."""
    try:
        return read(content, options)
    except MemoryError:
        return {"problem": "memory"}
    except Exception:  # noqa: BLE001 (broken content can make its reader raise any exception)
        return {"problem": "broken"}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
