"""A run of tests prints failures as they happen, and ends a test that hangs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.stack import REPOSITORY

FAILS: Final = """
import time
import pytest

def test_fails() -> None:
    assert 1 == 2, "canary"

@pytest.fixture
def broken() -> None:
    raise ValueError("no fixture\\nhere")

def test_has_no_fixture(broken: None) -> None: ...

def test_hangs() -> None:
    time.sleep(600)
"""
ENDS: Final = """
def test_passes() -> None: ...
"""
# Each starts runs of tests, with all their imports.
pytestmark = pytest.mark.extended

WORKERS: Final[tuple[list[str], ...]] = ([], ["--numprocesses=1", "--dist=loadfile"])


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a run of tests with this repository's conftest, away from its own tests."""
    (folder / "test_fails.py").write_text(FAILS)
    (folder / "test_passes.py").write_text(ENDS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.conftest", *arguments, "."]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    for name in [name for name in env if name.startswith("PYTEST")]:
        del env[name]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(params=WORKERS, ids=["one-process", "xdist"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run whose last test hangs."""
    arguments: list[str] = request.param
    with started(tmp_path, *arguments) as process:
        yield process
        process.send_signal(signal.SIGKILL)


def test_failure_is_printed_before_the_run_ends(running: subprocess.Popen[str]) -> None:
    assert running.stdout is not None
    printed = [
        line for _, line in zip(range(2), (each for each in running.stdout if "FAILED NOW" in each), strict=False)
    ]
    assert "test_fails.py::test_fails (call)" in printed[0]
    assert "test_fails.py:6: AssertionError: canary" in printed[0]
    assert "test_fails.py::test_has_no_fixture (setup)" in printed[1]
    assert printed[1].endswith("ValueError: no fixture\n")
    assert running.poll() is None


def test_hung_test_fails_with_its_stack_and_others_still_run(tmp_path: Path) -> None:
    with started(tmp_path, "--numprocesses=1", "--dist=loadfile", "--timeout=5") as process:
        assert process.stdout is not None
        printed = process.stdout.read()
    assert "FAILED NOW test_fails.py::test_hangs (call)" in printed
    assert "test_fails.py:15: Failed" in printed
    assert "2 failed, 1 passed, 1 error" in printed
