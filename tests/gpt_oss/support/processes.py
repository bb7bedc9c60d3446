"""Engine processes of a test."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from llama_stack_gpt_oss.process.settings import EngineSettings


def settings(folder: Path, checkpoint: Path, **changes: Any) -> EngineSettings:
    base = EngineSettings(
        folder=str(folder), checkpoint=str(checkpoint), device="cpu", context=2048, sequences=8, waiting=4
    )
    return replace(base, **changes)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def wait_for(true: Callable[[], bool], seconds: float = 180.0) -> None:
    """Poll until `true()` is true. Raise TimeoutError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)
