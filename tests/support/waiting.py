"""Waiting for what a server does beside the requests."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until it holds; AssertionError if it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"still not so after {seconds:g} s"
        time.sleep(0.02)
