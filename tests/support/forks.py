"""Live servers without the 3 to 4 s of processor time for the imports of the host: forked from a process that has them.

    with Forks.of_host("llama_stack", env, folder / "forks.log") as forks:
        process = forks.start(command, log=log, env=env, cwd=folder)     # None: start it as a new process

`tests/support/fork_server.py` is that process. It says no where a forked server could differ from a new one.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from tests.support.process import Child, StartError, killed_with_parent
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
SERVER: Final = Path(__file__).with_name("fork_server.py")
FEATURES: Final = sorted(
    each.parent.name for each in (ROOT / "llama_stack_responses" / "features").glob("*/feature.py")
)
OURS: Final = (
    "llama_stack_responses.host",
    "llama_stack_openai_chat.host.adapter",
    *(f"llama_stack_responses.features.{name}.feature" for name in FEATURES),
    "llama_stack_responses.features.code.containers.opening",
)
LIBRARIES: Final = ("uvicorn", "uvicorn.loops.uvloop", "uvicorn.protocols.http.httptools_impl", "aiosqlite")
IMPORTS: Final[dict[str, Sequence[str]]] = {
    "llama_stack": (
        "llama_stack.cli.llama",
        "llama_stack.core.server.server",
        "llama_stack.core.storage.kvstore.sqlite",
        "llama_stack.core.storage.sqlstore.sqlalchemy_sqlstore",
        "llama_stack.providers.utils.inference.inference_store",
        "llama_stack.providers.inline.files.localfs.files",
        *LIBRARIES,
        *OURS,
    ),
    "ogx": (
        "ogx.cli.ogx",
        "ogx.core.server.server",
        "ogx.core.storage.kvstore.sqlite",
        "ogx.core.storage.sqlstore.sqlalchemy_sqlstore",
        "ogx.providers.utils.inference.inference_store",
        "ogx.providers.inline.files.localfs.files",
        *LIBRARIES,
        *OURS,
    ),
}
"""The roots of what a server of the starter template imports while it starts, by host."""
OF_COMMANDS: Final[dict[str, Sequence[str]]] = {
    host: (
        "llama_stack_responses.cli",
        f"{host}.core.configure",
        f"{host}.core.storage.kvstore.sqlite",
        "llama_stack_responses.features.admin.backup_commands",
        "llama_stack_responses.host",
    )
    for host in IMPORTS
}
"""What a command imports that uses the host's code, which takes more than three seconds of processor time."""


class ForkedProcess:
    """A forked process, with the methods of `subprocess.Popen`.

    Args:
        forks: the connection to its parent.
        pid: process id. It stays valid until `poll` or `wait` returns a status.
    """

    def __init__(self, forks: "Forks", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._forks = forks
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        if self.returncode is None:
            self.returncode = self._forks.ask({"poll": self.pid})["status"]
            if self.returncode is not None:
                os.close(self._ended)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; subprocess.TimeoutExpired if the process still runs after `timeout` seconds."""
        if self.returncode is None:
            ended, _, _ = select.select([self._ended], [], [], timeout)
            if not ended:
                raise subprocess.TimeoutExpired("a forked server", timeout or 0.0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)


class ForkedChild(Child):
    """A forked server as a child."""

    def __init__(self, forked: ForkedProcess, log: Path) -> None:
        """Take over a process that has just been forked."""
        self._adopt(forked, log)


class Forks:
    """A fork server, for a `with` block. It starts on first use, and only from the main thread.

    Args:
        script: what the forked processes run.
        imports: what they find imported.
        env: the environment of the imports; servers that need another one are not forked.
        log: a file for the output of the imports.
        python: the interpreter.

    Attributes:
        script: what the forked processes run.
        env: the environment of the imports.
        refusals: why servers were not forked.
    """

    def __init__(
        self,
        script: Path,
        imports: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        python: Path = Path(sys.executable),
    ) -> None:
        self.refusals: list[str] = []
        self._python = str(python)
        self.script = str(script)
        self._imports = imports
        self.env = dict(env)
        self._log = log
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: Any = None

    @classmethod
    def of_host(cls, host: str, env: Mapping[str, str], log: Path, *, bare: bool = False) -> Self:
        """Return the fork server of a host's command. A bare one has nothing of this package imported."""
        script = Path(sys.executable).with_name({"llama_stack": "llama", "ogx": "ogx"}[host])
        return cls(script, [name for name in IMPORTS[host] if not bare or name not in OURS], env, log)

    @classmethod
    def of_commands(cls, host: str, env: Mapping[str, str], log: Path) -> Self:
        """Return the fork server of this package's commands that use the host's code."""
        return cls(Path(sys.executable).with_name("llama-stack-responses"), OF_COMMANDS[host], env, log)

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the fork server, and with it what it has forked."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._stream.close()

    def start(
        self, command: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path, errors: Path | None = None
    ) -> ForkedChild | None:
        """Return the forked command, or None if it has to be started as a new process.

        Its output goes to `log`, and its errors to `errors` or to `log` too.
        """
        if command[0] != self.script or not self._ready():
            return None
        log.touch()
        request = {
            "command": list(command),
            "env": dict(env),
            "cwd": str(cwd.absolute()),
            "log": str(log.absolute()),
            "errors": str((errors or log).absolute()),
        }
        answer = self.ask(request)
        if "refused" in answer:
            self.refusals.append(answer["refused"])
            return None
        return ForkedChild(ForkedProcess(self, answer["pid"]), log)

    def run(self, *words: str, folder: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run the script to its end in a folder, which gets files with its output and errors."""
        command, log, errors = [self.script, *words], folder / "output.log", folder / "errors.log"
        for file in (log, errors):
            file.write_text("")
        child = self.start(command, log=log, env=self.env if env is None else env, cwd=folder, errors=errors)
        assert child, self.refusals
        try:
            wait_until(lambda: child.returncode is not None)
        finally:
            status = child.kill()
        return subprocess.CompletedProcess(command, status or 0, log.read_text(), errors.read_text())

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request to the fork server and return its answer; StartError if it has ended."""
        line = b""
        with self._lock, contextlib.suppress(ConnectionError):
            self._stream.write(json.dumps(request).encode() + b"\n")
            self._stream.flush()
            line = self._stream.readline()
        if not line:
            raise StartError(f"the fork server has ended; its output:\n{self._log.read_text(errors='replace')}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ready(self) -> bool:
        """Start the fork server unless it runs. The kernel ends it with the thread that starts it."""
        if self._process is None:
            if threading.current_thread() is not threading.main_thread():
                return False
            self._launch()
        return True

    def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs, self._log.open("ab") as output:
            command = [self._python, str(SERVER), str(theirs.fileno()), self.script, *self._imports]
            self._process = subprocess.Popen(
                killed_with_parent(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=self.env,
                start_new_session=True,
            )
        self._stream = ours.makefile("rwb")
        ours.close()


if __name__ == "__main__":  # it compiles what stacks import
    for name in IMPORTS["llama_stack"]:
        importlib.import_module(name)
