"""A checkout in which nothing has to be installed, and a shell in it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.process import free_port
from tests.support.stack import REPOSITORY
from tests.support.terminal import Terminal

STAMPS: Final = (".ready", ".model", ".search", ".files-local", ".code-numpy,pandas,matplotlib")
READ: Final = (
    "INFERENCE_",
    "EMBEDDING_",
    "LLAMA_STACK_",
    "STATE_DIR",
    "RESPONSES_SECRET",
    "WEB_SEARCH",
    "FILE_SEARCH",
    "CODE_PACKAGES",
    "MAKE",
    "MFLAGS",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the files of this checkout, whose `.venv-run` is the environment of the tests.

    So `make` finds that nothing has to be installed; `tests/wheels` and `test_install_run.py` install it.
    """
    folder = tmp_path / "checkout"
    folder.mkdir()
    for each in REPOSITORY.iterdir():
        if not each.name.startswith("."):
            (folder / each.name).symlink_to(each)
    installed = folder / ".venv-run"
    installed.mkdir()
    for name in ("bin", "lib"):
        (installed / name).symlink_to(Path(sys.prefix) / name)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", installed)
    for stamp in STAMPS:
        (installed / stamp).touch()
    return folder


@pytest.fixture
def terminal(checkout: Path, tmp_path: Path) -> Iterator[Terminal]:
    """A shell in the checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(READ)}
    env = {
        **kept,
        "STATE_DIR": str(tmp_path / "state"),
        "LLAMA_STACK_PORT": str(free_port()),
        "NO_PROXY": "*",
        "no_proxy": "*",
    }
    with Terminal(checkout, env, {}) as created:
        yield created
