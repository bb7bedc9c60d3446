"""`make serve` in a checkout: what it prints last, and Ctrl-C."""

from __future__ import annotations

import os
import signal
from typing import Final

from tests.support.process import Child
from tests.support.waiting import wait_until

LAST: Final = "Ctrl-C ends it."


def interrupt(child: Child) -> None:
    """Press Ctrl-C, which all processes of the command get."""
    os.killpg(child.pid, signal.SIGINT)
    wait_until(lambda: child.returncode is not None)
