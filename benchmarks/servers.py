"""The compared servers, and their resource usage as seen from outside."""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.paced_load import cpu_nanoseconds
from tests.support.auth import auth_server
from tests.support.process import killed_with_parent
from tests.support.stack import Host, LiveStack
from tests.support.variants import responses_config, variant

Json = dict[str, Any]

REPOSITORY: Final = Path(__file__).parents[1]
TEMPLATE: Final = REPOSITORY / "templates" / "starter" / "config.yaml"

OURS: Final = "this project"
ON_HOST: Final = "this project, the host's inference"
BUILTIN: Final = "builtin"
KINDS: Final = (OURS, ON_HOST, BUILTIN)
CHAINED: Final = (OURS, BUILTIN)
"""The servers whose storage is compared: it does not depend on the inference provider."""
USERS: Final = {"benchmark": {"principal": "benchmark", "attributes": {"teams": ["measured"]}}}
"""The user of the token that `benchmarks.load` sends, for `auth_server`."""

_UNSETTLED: Final = ("-wal", "-shm", "-journal")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def use_hosts_inference(config: Json) -> None:
    """Replace the bundled inference provider with the host's own."""
    local = config["providers"]["inference"][0]
    settings = {"base_url": local["config"]["base_url"], "max_tokens": 0, "refresh_models": True}
    found = {"provider_id": local["provider_id"], "provider_type": "remote::vllm", "config": settings}
    config["providers"]["inference"] = [found]


def use_builtin(config: Json) -> None:
    """Replace this project's providers with the host's own, and add only what they need to start."""
    use_hosts_inference(config)
    config["apis"] += ["tool_runtime", "vector_io"]
    persistence = {
        "agent_state": {"namespace": "agents", "backend": "kv_default"},
        "responses": {"table_name": "responses", "backend": "sql_default"},
    }
    provider = {"provider_id": "builtin", "provider_type": "inline::builtin", "config": {"persistence": persistence}}
    config["providers"] |= {"responses": [provider], "tool_runtime": [], "vector_io": []}


def allow_many_in_background(config: Json) -> None:
    """Let the server run as many background responses at a time as streams are measured."""
    responses_config(config)["background"] = {"concurrency": 256, "concurrency_per_user": 256}


def authenticate(config: Json, endpoint: str) -> None:
    """Let the server ask an endpoint for the user of each token."""
    config["server"]["auth"] = {"provider_config": {"type": "custom", "endpoint": endpoint}}


def add_auth_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that measures with authentication."""
    parser.add_argument("--auth", action="store_true", help="all servers ask who sends a request")


def auth_endpoint(options: argparse.Namespace) -> AbstractContextManager[str | None]:
    """Return a context with the endpoint that says whose a token is; with None unless the option was given."""
    return auth_server(USERS) if options.auth else nullcontext()


def configured(path: Path, auth: str | None, change: Callable[[Json], None] = lambda _: None) -> Path:
    """Write a variant of the starter template to a file, and return its path.

    Args:
        path: the file.
        auth: the endpoint that says whose token it is; None for a server without authentication.
        change: changes the configuration.
    """

    def changed(config: Json) -> None:
        change(config)
        if auth:
            authenticate(config, auth)

    return variant(TEMPLATE, path, changed)


def stack(
    kind: str,
    host: Host,
    inference_url: str,
    folder: Path,
    auth: str | None = None,
    python: Path = Path(sys.executable),
) -> LiveStack:
    """Create a server of this kind with its state in this folder, without starting it.

    Args:
        auth: as for `configured`.
        python: that of the host's environment.
    """
    changes = {OURS: allow_many_in_background, ON_HOST: use_hosts_inference, BUILTIN: use_builtin}
    name = kind.replace(" ", "-").replace("'", "").replace(",", "")
    config = configured(folder / f"{name}.yaml", auth, changes[kind])
    return LiveStack(config, host_environment(inference_url), folder / name, host, python)


def host_environment(inference_url: str) -> dict[str, str]:
    """Return the environment of a server that is measured."""
    return {"INFERENCE_URL": inference_url, "PYTHONPATH": str(REPOSITORY)}


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of the process group and the leader's children, with all threads and reaped children."""
    # `stat` has the time of a process in hundredths of a second only.
    seconds = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if str(pid) in fields[1:3]:
                own = cpu_nanoseconds(int(stat.parent.name)) / 1e9
                seconds += own + sum(map(int, fields[13:15])) / _TICKS
        except OSError:  # it has ended
            continue
    return seconds


def stored_bytes(folder: Path) -> int:
    """Return the bytes of all files in a state folder except logs; write-ahead logs count as after a checkpoint."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".log"]
    return sum(_settled_bytes(path) for path in files if not path.name.endswith(_UNSETTLED))


def _settled_bytes(path: Path) -> int:
    if path.suffix != ".db":
        return path.stat().st_size
    with closing(sqlite3.connect(path, timeout=10)) as connection:
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        return int(pages * size)


_KILL_GROUP: Final = "import os, signal, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), signal.SIGKILL)"


@contextmanager
def group_killed_with_parent(pid: int) -> Iterator[None]:
    """Kill a process group if this process ends within the block, however it ends.

    The kernel kills the leader. Its workers would continue.
    """
    command = [sys.executable, "-I", "-S", "-c", _KILL_GROUP, str(pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as watching:  # noqa: S603
        try:
            yield
        finally:
            watching.kill()


class Worker:
    """A module of this folder in its own process, which answers lines of JSON with lines of JSON."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            killed_with_parent([sys.executable, "-m", module]),
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def submit(self, job: Json) -> None:
        """Start a job without waiting for its answer."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def ask(self, job: Json) -> Any:
        """Run a job and return its answer."""
        assert self._process.stdout
        self.submit(job)
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("a measuring process ended; its error stands above")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
