"""Start of server processes, readiness checks and cleanup."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 120.0
STOP_SECONDS = 10.0
LOG_TAIL_LINES = 15
KEPT_LOGS = 20


class ServerError(Exception):
    """A server did not start, or ended unexpectedly; the message ends with the last lines of its log."""


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def new_log(folder: Path, name: str) -> Path:
    """Return a path for the log of a server. No other start has it; the newest logs of this name are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob(f"{name}-*.log"), reverse=True)[KEPT_LOGS - 1 :]:
        old.unlink(missing_ok=True)
    return folder / f"{name}-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"


@dataclass(frozen=True)
class Server:
    """A server process, the leader of its own process group."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def failure(self, what: str) -> ServerError:
        """Return an exception that says what happened (`what`), with the end of the log."""
        with self.log.open(errors="replace") as lines:
            tail = "".join(f"  {line}" for line in deque(lines, LOG_TAIL_LINES))
        return ServerError(f"{self.name} {what}. Its log ends with:\n{tail}")

    def wait_until_ready(self, url: str) -> None:
        """Wait until `url` answers."""
        deadline = time.monotonic() + START_SECONDS
        while not _answers(url):
            if self.process.poll() is not None:
                raise self.failure("ended instead of starting")
            if time.monotonic() > deadline:
                raise self.failure(f"does not answer after {START_SECONDS:.0f} seconds")
            time.sleep(0.1)

    def wait_until_ended(self) -> None:
        """Wait until the process has ended."""
        self.process.wait()

    def stop(self) -> None:
        """End the process, which ends its children, by SIGTERM, and what is left of its group by SIGKILL."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 (http, to this machine)
            return True
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def server(
    name: str, command: Sequence[str], *, ready: str, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a server until the end of the block, which starts once the URL `ready` answers."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # Ctrl-C must reach only this process, which then ends the server and its children
        )
    running = Server(name, process, log)
    try:
        running.wait_until_ready(ready)
        yield running
    finally:
        running.stop()


def bypass_proxies() -> None:
    """Exempt connections to this machine from proxies, here and in the started servers."""
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1", "localhost")))


def exit_on_signals() -> None:
    """Let Ctrl-C, SIGTERM and SIGHUP end the program so that every `finally` runs without interruption."""
    endings = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def leave(signum: int, _frame: object) -> None:
        for each in endings:  # a second Ctrl-C must not interrupt the cleanup
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if signum == signal.SIGINT else SystemExit(128 + signum)

    for each in endings:
        signal.signal(each, leave)
