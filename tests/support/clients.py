"""Clients as users install them, each in its own environment, run against a live stack.

    finished = python_client("agents", "agents_tools.py", stack, tmp_path)
    finished = node_client("vercel", "vercel_text.mjs", stack, tmp_path)
    assert finished.result == {...}                          # the JSON in the last line of the script's output

`make .clients/.ready` installs them. The scripts, in `tests/clients`, read the stack's URL from `BASE_URL`.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.stack import REPOSITORY, LiveStack

FOLDER: Final = REPOSITORY / ".clients"
SCRIPTS: Final = REPOSITORY / "tests" / "clients"
SECONDS: Final = 240.0  # a second or two alone, far more when other tests use the cores


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


def run(
    command: Sequence[str | Path], folder: Path, env: Mapping[str, str] | None = None, *, seconds: float = SECONDS
) -> FinishedClient:
    """Run a client's command in `folder`, with only PATH from this process's environment, and `env`."""
    path = os.pathsep.join([str(installed("node") / "bin"), os.environ["PATH"]])
    whole = {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", "NO_PROXY": "*", **(env or {})}
    ended = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=whole,
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
    command: list[str | Path] = [installed(client) / "bin" / "python", SCRIPTS / script, *arguments]
    return run(command, folder, {**_env(stack), **(env or {})})


def node_client(client: str, script: str, stack: LiveStack, folder: Path, *arguments: str) -> FinishedClient:
    """Run a script of `tests/clients` with the packages of an npm client."""
    shutil.copy(SCRIPTS / script, folder)
    (folder / "node_modules").symlink_to(installed(client) / "node_modules")
    return run(["node", folder / script, *arguments], folder, _env(stack))


def _env(stack: LiveStack) -> dict[str, str]:
    return {"BASE_URL": f"{stack.base_url}/v1", "OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
