"""Shift the wall clock of a Python process by the seconds in the file that `CLOCK_SHIFT_FILE` names.

Python imports this module at its start if this folder is in PYTHONPATH. The file may change at any time. Without the
variable, the clock is right until a forked process calls `shift` (`tests/support/fork_server.py`).
"""

import os
import time
from pathlib import Path

_real = time.time
_files: list[Path] = []  # none or one


def _shifted() -> float:
    return _real() + sum(float(each.read_text()) for each in _files)


def shift() -> None:
    """Shift the clock by what the file says that the variable names."""
    if name := os.environ.get("CLOCK_SHIFT_FILE"):
        _files.append(Path(name))


# Modules that are imported later may keep the function.
time.time = _shifted
shift()
