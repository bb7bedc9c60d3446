"""The processes of an engine's other ranks, as rank 0 sees them.

Each has a connection: rank 0 sends the steps to compute, and gets the number of KV cache blocks that fit on the rank's
device, or the reason why the rank cannot go on. If a rank exits, the engine exits, and the client restarts it.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Final, NoReturn, Self

from .settings import EngineSettings

EXIT_SECONDS: Final = 10.0  # after which a rank that does not end is killed
END: Final = "end"  # the message after the last step
FAILURE_SECONDS: Final = 5.0  # within which an error of rank 0 may turn out to be the end of another rank

Fail = Callable[[str], NoReturn]


def rendezvous(settings: EngineSettings) -> Path:
    """Return the path of the file where the ranks find each other."""
    return settings.socket.with_suffix(".ranks")


class RankProcesses:
    """Starts the other ranks, if there are any, and watches them.

    fail: ends this process with a sentence. It is called from any thread, because the main thread may block forever on
    a rank that has exited.
    """

    def __init__(self, settings: EngineSettings, fail: Fail) -> None:
        self.rank = 0
        self._settings = settings
        self._fail = fail
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._connections: dict[int, Connection] = {}
        self._blocks: SimpleQueue[int] = SimpleQueue()
        self._agreed = False
        self._closing = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._processes:
            # A collective operation fails if a rank ends: its watcher then ends this process.
            self._closing.wait(FAILURE_SECONDS)
        self._closing.set()
        for rank, process in self._processes.items():
            if not self._agreed:  # it loads, and may wait for this one
                process.kill()
            with contextlib.suppress(OSError):  # it has ended
                self._connections[rank].send(END)
            try:
                process.wait(EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        rendezvous(self._settings).unlink(missing_ok=True)

    def start(self) -> None:
        """Start the processes."""
        rendezvous(self._settings).unlink(missing_ok=True)
        for rank in range(1, self._settings.tensor_parallel_size):
            self._start(rank)

    def announce(self, step: object) -> None:
        """Send a step, or what follows one, to all other ranks."""
        if not self._connections:
            return
        packed = pickle.dumps(step, pickle.HIGHEST_PROTOCOL)
        for rank, connection in self._connections.items():
            try:
                connection.send_bytes(packed)
            except OSError:
                self._ended(rank)

    def agree(self, blocks: int) -> int:
        """Return the number of KV cache blocks that all ranks have room for."""
        least = min([blocks, *(self._blocks.get() for _ in self._connections)])
        self.announce(least)
        self._agreed = True
        return least

    def _start(self, rank: int) -> None:
        ours, theirs = Pipe()
        arguments = [self._settings.to_json(), str(rank), str(theirs.fileno()), str(os.getpid())]
        command = [sys.executable, "-m", "llama_stack_gpt_oss.process.follower", *arguments]
        self._processes[rank] = subprocess.Popen(  # noqa: S603 (the command is our own)
            command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )
        self._connections[rank] = ours
        theirs.close()
        threading.Thread(target=self._watch, args=(rank, ours), daemon=True).start()

    def _watch(self, rank: int, connection: Connection) -> None:
        """Receive what a rank sends, until it ends."""
        try:
            while True:
                received = connection.recv()
                if isinstance(received, str):
                    self._fail(received)
                self._blocks.put(received)
        except (EOFError, OSError):
            if not self._closing.is_set():
                self._ended(rank)

    def _ended(self, rank: int) -> NoReturn:
        try:
            status = self._processes[rank].wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            status = 0
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        size = self._settings.tensor_parallel_size
        self._fail(f"Rank {rank} of the gpt-oss engine's {size} {how}, and the engine ended with it")
