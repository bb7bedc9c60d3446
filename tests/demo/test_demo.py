"""The demo holds its conversation with a real model, and leaves nothing running."""

from __future__ import annotations

import subprocess
import sys

from tests.support.stack import REPOSITORY


def test_the_demo() -> None:
    command = [sys.executable, str(REPOSITORY / "demo" / "demo.py")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert "resp_" in ran.stdout
    assert "Traceback" not in ran.stdout + ran.stderr
