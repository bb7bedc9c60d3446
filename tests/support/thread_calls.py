"""The functions that are called in the current thread, such as that of the event loop.

with calls_of_this_thread() as called:
    await work()
assert "loads" not in called
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def calls_of_this_thread() -> Iterator[set[str]]:
    """Yield the qualified names of the Python functions that this thread calls during the block."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.add(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(before)
