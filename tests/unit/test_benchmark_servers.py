"""The processes of benchmarks end with them."""

import subprocess
import sys

import pytest

_KILLED = """
import os, signal, subprocess
from benchmarks.servers import group_killed_with_parent

server = subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True)
with group_killed_with_parent(server.pid):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.extended
def test_group_killed_with_parent_ends_workers_of_killed_benchmark() -> None:
    # The pipe ends when the last process has ended that inherited it.
    killed = subprocess.run([sys.executable, "-c", _KILLED], stdout=subprocess.PIPE, check=False, timeout=240)
    assert killed.returncode == -9
