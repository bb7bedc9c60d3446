"""Child processes: ready, failed, stopped, and never left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.proc import has_ended
from tests.support.process import Child, StartError, free_port
from tests.support.stack import LiveStack
from tests.support.waiting import wait_until

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]


def started(command: list[str], log: Path) -> Child:
    """Start a child and wait until it has printed `up`."""
    child = Child(command, log=log)
    child.wait_ready(lambda: "up" in log.read_text() or None, seconds=60, every=0.01)
    return child


def test_stop_terminates_child(tmp_path: Path) -> None:
    child = started(SLEEP, tmp_path / "log")
    assert child.returncode is None
    assert child.stop() == -signal.SIGTERM
    assert child.stop() == -signal.SIGTERM


def test_stop_kills_stubborn_child(tmp_path: Path) -> None:
    child = started(STUBBORN, tmp_path / "log")
    assert child.stop(grace=0.1) == -signal.SIGKILL


def test_early_exit_is_reported_with_log(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", "raise SystemExit('no config here')"], log=tmp_path / "log")
    with pytest.raises(StartError, match=r"ended with 1 .*\n.*no config here"):
        child.wait_ready(lambda: None, seconds=60)
    child.kill()


def test_child_that_is_never_ready_times_out(tmp_path: Path) -> None:
    child = started(SLEEP, tmp_path / "log")
    with pytest.raises(StartError, match=r"not ready after 0.1 s"):
        child.wait_ready(lambda: None, seconds=0.1)
    child.kill()


SHELL = ["bash", "-c", "sleep 600 & echo $!; echo up; wait"]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
@pytest.mark.parametrize("command", [SLEEP, SHELL])
def test_child_and_rest_of_its_group_end_with_killed_parent(command: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = (
        "import sys, time; from pathlib import Path; from tests.support.process import Child\n"
        f"print(Child({command!r}, log=Path({str(log)!r})).pid, flush=True); time.sleep(60)"
    )
    root = Path(__file__).parents[3]
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(parent.stdout.readline())]
    while "up" not in log.read_text():
        time.sleep(0.01)
    pids += map(int, log.read_text().split()[:-1])
    assert not any(map(has_ended, pids))
    parent.kill()
    parent.wait()
    wait_until(lambda: all(map(has_ended, pids)))


def test_free_port_is_reserved_for_caller() -> None:
    port = free_port()
    handed_out = set()
    for _ in range(200):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            handed_out.add(other.getsockname()[1])
    assert port not in handed_out
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))


def test_stack_that_cannot_start_is_reported_with_log(tmp_path: Path) -> None:
    """`llama` is a stand-in here: the real one takes seconds and is covered by the integration tests."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    script = bin_folder / "llama"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\nsys.exit(f'{{os.environ[\"STATE_DIR\"]}} {{sys.argv[1:3]}}')\n"
    )
    script.chmod(0o755)
    stack = LiveStack(Path("config.yaml"), {}, tmp_path / "state", python=bin_folder / "python")
    with pytest.raises(StartError, match=r"ended with 1 .*\n.*state \['stack', 'run'\]"):
        stack.start()
    assert stack.stop() is None
    assert str(os.getpid()) not in stack.tail()
