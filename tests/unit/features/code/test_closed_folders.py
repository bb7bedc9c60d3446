"""Files and folders from which the code has taken all permissions, on a server that is not root.

Root reads and writes them anyway. If the tests run as root, the server is the user 1000 of a user namespace, without
capabilities.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

UNPRIVILEGED = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
ROOT = Path(__file__).parents[3]


@pytest.mark.extended
@pytest.mark.parametrize("in_memory", [True, False])
def test_closed_folder_stays_usable_and_counted(tmp_path: Path, in_memory: bool) -> None:
    program = [
        sys.executable,
        "-m",
        "tests.unit.features.code.closed_folders",
        str(tmp_path / "containers"),
        str(in_memory),
    ]
    command = [*([] if os.getuid() else UNPRIVILEGED), *program]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("user") != 0
    if not in_memory:
        assert found.pop("filled") == "Its files took more than 16 MiB."
    assert found == {
        "uploaded": "/mnt/data/new",
        "contents": {"/mnt/data/a": 1_000, "/mnt/data/d/b": 100_000, "/mnt/data/new": 3},
        "used": True,
        "deleted": [True, False],
        "after": "here\n",
        "left": [],
    }
