"""Clients as users install them, each in its own environment, run against a live stack.

    finished = python_client("agents", "agents_tools.py", stack, tmp_path)
    finished = node_client("vercel", "vercel_text.mjs", stack, tmp_path)
    assert finished.result == {...}                          # the JSON in the last line of the script's output

`make .clients/.ready` installs them. The scripts, in `tests/clients`, read the stack's URL from `BASE_URL`.

A Python client needs 1 to 4 s of processor time for its imports. So the first run of each is a new process, and the later
ones are forked from a process that has imported it.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from tests.support.forks import Forks
from tests.support.stack import REPOSITORY, LiveStack

FOLDER: Final = REPOSITORY / ".clients"
SCRIPTS: Final = REPOSITORY / "tests" / "clients"
SECONDS: Final = 240.0  # a second or two alone, far more when other tests use the cores
IMPORTS: Final[dict[str, Sequence[str]]] = {
    "agents": ("agents", "openai.resources.responses"),
    "langchain": ("langchain_openai", "openai.resources.responses"),
    "pydantic-ai": ("pydantic_ai.models.openai", "pydantic_ai.providers.openai", "openai.resources.responses"),
    "llama-stack-client": ("llama_stack_client", "llama_stack_client.types"),
    "ogx-client": ("ogx_client",),
}
"""What the script of each Python client imports."""


@dataclass(frozen=True, slots=True)
class FinishedClient:
    """A client's exit code and output."""

    code: int
    out: str
    errors: str

    @property
    def result(self) -> Any:
        """The JSON in the last line of the output."""
        assert self.code == 0, f"{self.out}\n{self.errors}"
        return json.loads(self.out.splitlines()[-1])


class PythonClients:
    """The processes that have imported a Python client, for a `with` block around the tests.

    Args:
        folder: an empty folder; also the home folder of the clients that are forked.
    """

    current: ClassVar["PythonClients | None"] = None
    """Those of this test run, in such a block."""

    def __init__(self, folder: Path) -> None:
        self.forks: dict[str, Forks] = {}
        self._folder = folder
        self._open = ExitStack()
        self._number = 0

    def __enter__(self) -> Self:
        """Fork the clients of this test run from now on."""
        PythonClients.current = self
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        PythonClients.current = None
        self._open.close()

    def forked(
        self, client: str, script: Path, arguments: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> FinishedClient | None:
        """Run a script in a fork and wait for its end; None the first time for each client, which needs a new process."""
        env = _whole(env, self._folder)
        if client not in self.forks:
            python, log = installed(client) / "bin" / "python", self._folder / f"{client}.log"
            forks = Forks(script, IMPORTS[client], env, log, python)
            self.forks[client] = self._open.enter_context(forks)
            return None
        self._number += 1
        out, errors = (self._folder / f"{self._number}.{name}" for name in ("out", "errors"))
        command = [str(script), *arguments]
        child = self.forks[client].start(command, log=out, env=env, cwd=folder, errors=errors)
        assert child is not None, self.forks[client].refusals
        return FinishedClient(child.wait(SECONDS), out.read_text(), errors.read_text())


def run(
    command: Sequence[str | Path], folder: Path, env: Mapping[str, str] | None = None, *, seconds: float = SECONDS
) -> FinishedClient:
    """Run a client's command in `folder`, with only PATH from this process's environment, and `env`."""
    ended = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=_whole(env or {}, folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    return FinishedClient(ended.returncode, ended.stdout, ended.stderr)


def installed(client: str) -> Path:
    """Return the folder of a client's environment."""
    folder = FOLDER / client
    assert (folder / ".ready").exists(), f"the client '{client}' is not installed: run `make .clients/.ready`"
    return folder


def python_client(
    client: str, script: str, stack: LiveStack, folder: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> FinishedClient:
    """Run a script of `tests/clients` in a Python client's environment."""
    path, env = SCRIPTS / script, {**_env(stack), **(env or {})}
    clients = PythonClients.current
    forked = clients.forked(client, path, arguments, folder, env) if clients else None
    return forked or run([installed(client) / "bin" / "python", path, *arguments], folder, env)


def node_client(
    client: str, script: str, stack: LiveStack, folder: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> FinishedClient:
    """Run a script of `tests/clients` with the packages of an npm client."""
    shutil.copy(SCRIPTS / script, folder)
    (folder / "node_modules").symlink_to(installed(client) / "node_modules")
    return run(["node", folder / script, *arguments], folder, {**_env(stack), **(env or {})})


def _env(stack: LiveStack) -> dict[str, str]:
    return {"BASE_URL": f"{stack.base_url}/v1", "OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1"}


def _whole(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the whole environment of a client."""
    path = os.pathsep.join([str(installed("node") / "bin"), os.environ["PATH"]])
    return {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", "NO_PROXY": "*", **env}
