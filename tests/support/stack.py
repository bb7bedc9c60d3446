"""A live stack for a test run: `llama stack run` or `ogx run` in its own process group."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

import httpx
import httpx2
import openai

from tests.support.forks import Forks
from tests.support.process import GRACE, Child, StartError, free_port

type Host = Literal["llama_stack", "ogx"]

REPOSITORY = Path(__file__).parents[2]
PACKAGES = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "providers" / "openai_chat")))
"""A PYTHONPATH with the packages of this checkout."""
STARTER = REPOSITORY / "templates" / "starter" / "config.yaml"
READY_SECONDS = 240.0  # about 7 s alone on two cores, far more when other tests use them
START_ATTEMPTS = 3


def run_command(host: Host, python: Path, config: Path, port: int) -> list[str]:
    """Return the host's command line, from the environment of `python`."""
    bin_folder = python.parent  # not resolved: in a virtual environment `python` is a link to another folder
    if host == "ogx":
        return [str(bin_folder / "ogx"), "run", str(config), "--port", str(port), "--insecure"]
    return [str(bin_folder / "llama"), "stack", "run", str(config), "--port", str(port)]


class LiveStack:
    """One stack: started by `start()` or a `with` block; it can be stopped and restarted with the same state.

    `env` extends this process's environment, with STATE_DIR set to `state_dir`, which also contains the log. `cwd`
    defaults to the state folder, so that nothing depends on the current folder of the tests.
    """

    START_ERRORS_TO_RETRY: tuple[str, ...] = ("address already in use",)
    """Log messages after which a start is retried."""
    forks: ClassVar[Forks | None] = None
    """The fork server of this test run, if it has one."""

    def __init__(
        self,
        config_path: Path,
        env: Mapping[str, str],
        state_dir: Path,
        host: Host = "llama_stack",
        python: Path = Path(sys.executable),
        cwd: Path | None = None,
        fork: bool = True,
        forks: Forks | None = None,
    ) -> None:
        """Prepare a stack.

        Without `fork` it is always a new process: for tests of the start itself, and of several servers that must not
        have the same hash seed. `forks` is used instead of the fork server of the test run, for a stack with another
        environment.
        """
        self.state_dir = state_dir
        self.log = state_dir / "stack.log"
        self.port = 0
        self._config = config_path.resolve()
        self._env = {**os.environ, **env, "STATE_DIR": str(state_dir)}
        self._host: Host = host
        self._python = python
        self._cwd = cwd or state_dir
        self._fork = fork
        self._own_forks = forks
        self._child: Child | None = None
        self._log_start = 0

    def __enter__(self) -> Self:
        """Start the stack."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the stack."""
        self.stop()

    @property
    def base_url(self) -> str:
        """Its root URL, without /v1."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._running().pid

    def client(self, api_key: str = "none", timeout: float = 120.0) -> openai.OpenAI:
        """Return an OpenAI client of the stack without retries, for a `with` block or `close()`."""
        # Plain HTTP: with `verify`, each client would first load the machine's certificates, which takes 50 ms or more.
        # A new connection for each request: an idle one may be closed just as it is reused.
        limits = httpx2.Limits(max_keepalive_connections=0)
        http = openai.DefaultHttpxClient(verify=False, trust_env=False, limits=limits)
        url = f"{self.base_url}/v1"
        return openai.OpenAI(base_url=url, api_key=api_key, max_retries=0, timeout=timeout, http_client=http)

    def start(self, port: int | None = None) -> None:
        """Start the stack, on a new port by default; StartError, with the end of its log, if it does not answer."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._start_once(port or free_port())
                return
            except StartError:
                if attempt == START_ATTEMPTS or not any(
                    error in self._log_since_start() for error in self.START_ERRORS_TO_RETRY
                ):
                    raise

    def stop(self, grace: float = GRACE) -> int | None:
        """Send SIGTERM, then SIGKILL after `grace` seconds; return the exit status, None if it did not run."""
        child, self._child = self._child, None
        return child.stop(grace) if child else None

    def kill(self) -> None:
        """Kill the stack with SIGKILL, like a power failure."""
        child, self._child = self._child, None
        if child:
            child.kill()

    def restart(self) -> None:
        """Stop and start with the same state, on a new port."""
        self.stop()
        self.start()

    def is_ready(self) -> bool:
        """Whether it says that a load balancer may send it requests."""
        return httpx.get(f"{self.base_url}/v1/ready", timeout=60, trust_env=False, verify=False).status_code == 200

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of its log, for the message of a failed test."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _start_once(self, port: int) -> None:
        self.port = port
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        child = self._forked() or Child(self._command(), log=self.log, env=self._env, cwd=self._cwd)
        try:
            child.wait_ready(self._health, seconds=READY_SECONDS)
        except BaseException:
            child.kill()
            raise
        self._child = child

    def _forked(self) -> Child | None:
        """Return the server if it can be forked."""
        forks = self._own_forks or self.forks
        if forks is None or not self._fork:
            return None
        return forks.start(self._command(), log=self.log, env=self._env, cwd=self._cwd)

    def _log_since_start(self) -> str:
        """Return its log since the last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _command(self) -> list[str]:
        return run_command(self._host, self._python, self._config, self.port)

    def _health(self) -> bool | None:
        try:
            return httpx.get(f"{self.base_url}/v1/health", timeout=5, trust_env=False, verify=False).is_success or None
        except httpx.TransportError:
            return None

    def _running(self) -> Child:
        if self._child is None:
            raise RuntimeError("the stack does not run")
        return self._child
