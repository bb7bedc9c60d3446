"""A stack with several worker processes, and detection of the worker that answers.

A TCP connection stays with the worker that accepted it:

    with Workers(stack) as workers:             # a client for each worker, once there are two
        for pid, wire in workers.wires.items():
            wire.create(model="local/echo", input="Hi")
        workers.check()                         # the clients still reach the same workers

It reads /proc, so it needs Linux.
"""

import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import httpx

from tests.support.stack import READY_SECONDS, LiveStack
from tests.support.wire import Wire

COUNT = 2
_LISTENS = "0A"
"""The state of a listening socket in `/proc/net/tcp`."""
IDLE_SECONDS = 60
"""Seconds for which an idle connection stays open."""


class WorkersStack(LiveStack):
    """A stack run by uvicorn's command, with two workers.

    The host's command does the same with `server.workers`. But there each worker imports the host before it answers its
    supervisor, which kills it after 5 s: on a busy machine no worker would ever be ready.
    """

    # Two workers of OGX may create its tables at the same time.
    START_ERRORS_TO_RETRY = (*LiveStack.START_ERRORS_TO_RETRY, "already exists")

    def _command(self) -> list[str]:
        host = self._host
        app = f"{host}.core.server.server:create_app"
        options = ["--factory", "--host", "127.0.0.1", "--port", str(self.port), "--workers", str(COUNT)]
        # A busy machine must neither kill a worker nor close the connection to it.
        options += ["--timeout-worker-healthcheck", "20", "--timeout-keep-alive", str(2 * IDLE_SECONDS)]
        config = f"{host.upper()}_CONFIG={self._config}"
        return ["env", config, str(self._python), "-m", "uvicorn", app, *options]

    def _health(self) -> bool | None:
        """Require that all workers have started: one that cannot start ends the others."""
        started = self._log_since_start().count("Application startup complete.")
        return super()._health() if started >= COUNT else None


class Workers:
    """A client for each worker of a stack, for a `with` block."""

    def __init__(self, stack: LiveStack) -> None:
        """Prepare the clients."""
        self.wires: dict[int, Wire] = {}
        self._stack = stack
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Connect until every worker has accepted a connection."""
        deadline = time.monotonic() + READY_SECONDS
        while len(self.wires) < COUNT:
            assert time.monotonic() < deadline, self._stack.tail()
            wire = Wire(self._stack, idle_seconds=IDLE_SECONDS)
            pid = worker_of(wire, self._stack)
            if pid in self.wires:
                wire.http.close()
                time.sleep(0.02)
            else:
                self.wires[pid] = self._open.enter_context(wire)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self._open.close()

    def check(self) -> None:
        """Require that each client still reaches its worker."""
        assert {worker_of(wire, self._stack): wire for wire in self.wires.values()} == self.wires


def worker_of(wire: Wire, stack: LiveStack) -> int:
    """Return the process at the other end of the client's idle connection."""
    with wire.http.stream("GET", "/health") as answer:
        pid = worker_behind(answer, stack)
        answer.read()
    return pid


def worker_behind(answer: httpx.Response, stack: LiveStack) -> int:
    """Return the process that sends an answer, which must not have been read to its end."""
    _, port = answer.extensions["network_stream"].get_extra_info("client_addr")
    link = f"socket:[{_inode(stack.port, port)}]"
    [pid] = [pid for pid in _family(stack.pid) if link in _links(pid)]
    return pid


def listener(stack: LiveStack, port: int) -> int:
    """Return the process of a stack that listens on another port."""
    inodes = {
        fields[9]
        for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
        if int(fields[1].split(":")[1], 16) == port and fields[3] == _LISTENS
    }
    [pid] = [pid for pid in _family(stack.pid) if inodes & {link[8:-1] for link in _links(pid)}]
    return pid


def _inode(server: int, client: int) -> str:
    """Return the inode of the server's socket of a local connection."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if [int(fields[end].split(":")[1], 16) for end in (1, 2)] == [server, client]:
            return fields[9]
    raise AssertionError(f"no connection from {client} to {server}")


def _family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    with suppress(OSError):  # it has ended meanwhile
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += _family(int(child))
    return found


def _links(pid: int) -> list[str]:
    """Return the targets of a process's file descriptors."""
    found = []
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(str(link.readlink()))
    return found
