"""Several processes run each file once, and say so if one of them fails."""

import os
import shlex
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from tests.support.parallel import TESTS, TOGETHER, groups, is_live
from tests.support.proc import has_ended
from tests.support.waiting import wait_until

CONFTEST: Final = """
import pytest
from tests.support.leaks import report_leaks
from tests.support.parallel import add_option as pytest_addoption, run_queue

def pytest_configure(config):
    report_leaks(config)
    run_queue(config)

collect_ignore = ["test_ignored.py"]

@pytest.fixture(scope="session")
def shared():
    with open("fixtures", "a") as file:
        file.write("made\\n")
"""
OF_A_FOLDER: Final = """
import pytest

@pytest.fixture(scope="session")
def near(): ...
"""
USES: Final = """
import os

def test_first(shared):
    with open("files", "a") as file:
        file.write(f"{os.path.basename(__file__)}\\n")

def test_last(shared): ...
"""


def run(folder: Path, processes: int, *arguments: str) -> tuple[int, str]:
    """Run the tests of a folder and return the exit status and the output."""
    command, env = prepared(folder, processes, *arguments)
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def prepared(folder: Path, processes: int, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Prepare a folder, and return the command and its environment."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    command = [sys.executable, "-m", "tests.support.parallel", f"--processes={processes}", "--report=report.xml", "."]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env |= {"PYTHONPATH": str(TESTS.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return [*command, "--", *arguments], env


@pytest.mark.extended
def test_each_file_is_run_once_with_fixtures_of_the_session(tmp_path: Path) -> None:
    names = [f"test_{number}.py" for number in range(12)]
    for name in [*names, "test_ignored.py"]:
        (tmp_path / name).write_text(USES)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "conftest.py").write_text(OF_A_FOLDER)
    for name in (names := [*names, "test_in_folder.py", "test_in_folder_too.py"])[-2:]:
        (tmp_path / "folder" / name).write_text(USES.replace("shared", "shared, near"))
    code, output = run(tmp_path, 2)
    assert code == 0, output
    assert Counter((tmp_path / "files").read_text().split()) == Counter(names)
    assert len((tmp_path / "fixtures").read_text().split()) <= 2
    assert len(list(tmp_path.glob("report.?.xml"))) == 2


@pytest.mark.extended
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def test_fails(): assert not 'canary'", "1 failed"),
        ("import no_such_module", "1 error"),
        ("import os\ndef test_ends(): os.kill(os.getpid(), 9)", "1: "),
    ],
)
def test_file_that_fails_fails_the_run_and_others_still_run(text: str, said: str, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"test_{number}.py").write_text(USES)
    (tmp_path / "test_9.py").write_text(text)
    code, output = run(tmp_path, 1)
    assert code != 0
    assert said in output
    assert Counter((tmp_path / "files").read_text().split()).total() == 3


LEAVES: Final = """
import socket
import pytest

class Cycle:
    def __init__(self):
        self.itself, self.socket = self, socket.socket()

@pytest.fixture(scope="module")
def made():
    yield Cycle()

def test_leaves_it_open(PARAMETER): Cycle()

def test_last(): ...
"""


@pytest.mark.extended
@pytest.mark.parametrize("parameter", ["", "made"])
def test_socket_left_open_fails_the_last_test_of_its_file(parameter: str, tmp_path: Path) -> None:
    """Also if the next file has been collected meanwhile, with what its fixtures and tests hold."""
    (tmp_path / "test_1.py").write_text(LEAVES.replace("PARAMETER", parameter))
    (tmp_path / "test_2.py").write_text(USES)
    code, output = run(tmp_path, 1, "-W", "error")
    assert (code, "ERROR test_1.py::test_last" in output, "4 passed, 1 error" in output) == (1, True, True), output


@pytest.mark.extended
def test_options_select_tests(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(USES)
    code, output = run(tmp_path, 1, "-k", "first")
    assert (code, "1 passed, 1 deselected" in output) == (0, True), output


BROKEN_OFF: Final = """
import time
from pathlib import Path
from tests.support.process import Child

def test_runs(tmp_path):
    child = Child(["sleep", "600"], log=tmp_path / "log")
    try:
        Path("new").write_text(str(child.pid))
        Path("new").rename("pid")
        time.sleep(600)
    finally:
        child.stop()
        Path("stopped").touch()
"""


@pytest.mark.extended
def test_run_whose_shell_is_ended_stops_what_it_has_started(tmp_path: Path) -> None:
    """`make` sends SIGTERM to the shells of its targets only, and the shell does not send it to the programs of a pipe."""
    (tmp_path / "test_runs.py").write_text(BROKEN_OFF)
    command, env = prepared(tmp_path, 1, "--ends-with-parent")
    line = f"{shlex.join(command)} >output 2>&1 | cat"
    with subprocess.Popen(["bash", "-c", line], cwd=tmp_path, env=env) as shell:
        wait_until((tmp_path / "pid").exists)
        pid = int((tmp_path / "pid").read_text())
        shell.terminate()
    wait_until(lambda: has_ended(pid) and (tmp_path / "stopped").exists())


def test_files_of_the_browser_are_for_one_process_and_each_file_is_in_one_group() -> None:
    found = groups([TESTS])
    assert [each for each in found if len(each) > 1] == [sorted(TOGETHER.glob("test_*.py"))]
    files = list(chain(*found))
    assert sorted(files) == sorted(TESTS.rglob("test_*.py"))
    assert not any(is_live(file) for file in files[-20:])
