"""The environments of the compared servers, made when they are first needed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

from benchmarks.servers import REPOSITORY

FOLDER: Final = REPOSITORY / ".rivals"


class MissingError(Exception):
    """A server cannot be installed or started here."""


def environment(name: str) -> Path:
    """Return the environment of a server, made by the Makefile if it is missing or out of date."""
    targets = {"llama-stack": ".venv", "ogx": ".venv-ogx", "litellm": ".venv-litellm"}
    folder = targets.get(name, f".rivals/{name}")
    made = subprocess.run(  # noqa: S603
        ["make", "--silent", f"{folder}/.ready"],  # noqa: S607
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        [*_, last] = made.stderr.strip().splitlines() or ["make failed"]
        raise MissingError(f"not installed: {last}")
    return REPOSITORY / folder


def pinned(name: str, package: str) -> str:
    """Return the version of a package in the pins of a server."""
    files = {"llama-stack": "llama-stack.txt", "ogx": "ogx.txt", "litellm": "litellm.txt"}
    pins = (REPOSITORY / "constraints" / files.get(name, f"rivals/{name}.txt")).read_text()
    found = re.search(rf"^{re.escape(package)}==(\S+)$", pins, re.MULTILINE)
    if found is None:
        raise ValueError(f"{package} is not among the pins of {name}")
    return found[1]
