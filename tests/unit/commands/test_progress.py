"""How far a command is, on a terminal and elsewhere."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from llama_stack_responses.commands.progress import ProgressLine
from tests.support.golden_store import GoldenStore, load, newest_file

ROOT: Final = Path(__file__).parents[3]
STARTER: Final = str(ROOT / "templates" / "starter" / "config.yaml")


class Terminal(io.StringIO):
    """What is printed on a terminal."""

    def isatty(self) -> bool:
        return True


def test_count_is_printed_twice_a_second_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, now = Terminal(), [0.0]
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressLine("rows", 2_000, clock=lambda: now[0]) as progress:
        for _ in range(8):
            now[0] += 0.25
            progress.add(250)
    lines = terminal.getvalue().replace("\x1b[K", "").split("\r")
    assert lines == ["", "500 of 2,000 rows", "1,000 of 2,000 rows", "1,500 of 2,000 rows", "2,000 of 2,000 rows", ""]


def test_nothing_is_printed_without_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    with ProgressLine("rows", clock=iter(range(9)).__next__) as progress:
        progress.add(5)
    assert not printed.getvalue()


@pytest.mark.extended
def test_delete_of_owner_on_terminal_removes_everything(tmp_path: Path) -> None:
    load(GoldenStore.read(newest_file("sqlite.json.xz")), None, tmp_path / "state")
    for host_table in ("host-kv.db", "host-sql.db"):
        (tmp_path / "state" / host_table).touch()
    parent, child = pty.openpty()
    program = "import sys; from llama_stack_responses.cli import main; sys.exit(main())"
    environment = {**os.environ, "STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, "delete", "--owner=", "--yes", "--config", STARTER]
    ended = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=child, text=True, check=False, timeout=240
    )
    os.close(child)
    assert ended.returncode == 0
    assert re.search(r"^deleted responses +14$", ended.stdout, re.MULTILINE)
    assert not os.read(parent, 1000).replace(b"\r", b"").replace(b"\x1b[K", b""), "the count is removed"
    os.close(parent)
    listed = [*command[:3], "list", "--json", "--config", STARTER]
    left = subprocess.run(listed, env=environment, capture_output=True, text=True, check=True, timeout=240)
    assert '"principal": ""' not in left.stdout
