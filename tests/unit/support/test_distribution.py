"""The files of the browser's tests are run by one process."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.distribution import BROWSER
from tests.support.stack import REPOSITORY

TEST: Final = """
import os

def test_process() -> None:
    with open("processes", "a") as file:
        file.write(f"{__file__} {os.getpid()}\\n")
"""
CONFTEST: Final = "from tests.conftest import pytest_xdist_make_scheduler, pytest_addoption\n"


def test_folder_of_browser_exists() -> None:
    assert list((REPOSITORY / BROWSER).glob("test_*.py"))


@pytest.mark.extended
def test_one_process_has_all_files_of_browser(tmp_path: Path) -> None:
    (tmp_path / BROWSER).mkdir(parents=True)
    for name in range(8):
        (tmp_path / BROWSER / f"test_{name}.py").write_text(TEST)
        (tmp_path / f"test_{name}.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    options = ("--import-mode=importlib", "--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "--rootdir", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(REPOSITORY), "PATH": ""}, check=True)
    ran = dict(line.split() for line in (tmp_path / "processes").read_text().splitlines())
    assert len(ran) == 16
    assert len({process for file, process in ran.items() if BROWSER in file}) == 1
