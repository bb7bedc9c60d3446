"""What `scripts/install-run` installs is as large as the script and the documentation say."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.stack import REPOSITORY
from tests.support.waiting import wait_until

PARTS: Final = {
    "server": "for the server",
    "model": "for the small model",
    "search": "for the web search",
    "files": "for the file search",
}
"""The parts that the script installs, in the order of the documentation, and the words for them there."""

UNIT: Final = 1_000_000
APART: Final = 0.2
"""Part of the stated size by which what is installed may differ: file systems and releases do."""


def documented() -> dict[str, int]:
    text = " ".join((REPOSITORY / "docs" / "guides" / "installation.md").read_text().split())
    sizes = {part: re.search(rf"(\d+) MB {words}", text) for part, words in PARTS.items()}
    return {part: int(found[1]) for part, found in sizes.items() if found}


def printed() -> dict[str, int]:
    script = (REPOSITORY / "scripts" / "install-run").read_text()
    return {part: int(size) for part, size in re.findall(r"^(\w+)\) .*\bsize=(\d+) ", script, re.MULTILINE)}


def on_disk(folder: Path) -> int:
    """Return the space that the files of a folder take, in bytes."""
    files = [Path(parent) / name for parent, _, names in os.walk(folder) for name in names]
    return sum(file.lstat().st_blocks * 512 for file in files)


def test_documentation_and_script_state_the_same_sizes() -> None:
    assert printed() == documented()
    assert printed().keys() == PARTS.keys()
    assert printed()["server"] + printed()["model"] < 400


def test_interrupted_installation_prints_no_traceback(tmp_path: Path) -> None:
    command = ["scripts/install-run", str(tmp_path / "environment"), "server"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as ran:
        assert ran.stdout is not None
        assert ran.stdout.readline().startswith("Installing the server")
        modules = Path(f"/proc/{ran.pid}/task/{ran.pid}/children")
        wait_until(lambda: any(_imports(child) for child in modules.read_text().split()))
        os.killpg(ran.pid, signal.SIGINT)
        _, errors = ran.communicate(timeout=240)
    assert (ran.returncode, errors) == (130, "Stopped.\n")


def _imports(child: str) -> bool:
    """Return whether a process is the program that makes an environment, and has started one of its own."""
    return Path(f"/proc/{child}/task/{child}/children").read_text().strip() != ""


@pytest.mark.day(3)
def test_installed_parts_have_the_stated_sizes(tmp_path: Path) -> None:
    """Needs a package index.

    The certificates are those of the system's store, as on a machine that trusts the index only by one of them.
    """
    env = {name: value for name, value in os.environ.items() if name not in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
    folder, before = tmp_path / "environment", 0
    for part, stated in printed().items():
        ran = subprocess.run(
            ["scripts/install-run", str(folder), part],
            cwd=REPOSITORY,
            env=env,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        [line] = ran.stdout.strip().splitlines()
        assert f"about {stated} MB on the disk (once)" in line
        size = on_disk(folder)
        assert (size - before) / UNIT == pytest.approx(stated, rel=APART)
        before = size
