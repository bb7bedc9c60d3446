"""Run a Python script that writes its memory to a file on SIGUSR1, and traces allocations from the first time on.

    python -m benchmarks.traced FILE SCRIPT ARGUMENTS...

The file is JSON and complete when it appears: `traces` are the allocations since the first signal that are still held,
as `[bytes, [[file, line], ...]]` with the innermost frame first, and `objects` are `[count, bytes]` of all objects that
the garbage collector knows, by type.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

FRAMES: Final = 24
"""Frames of each allocation."""


def _objects() -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in gc.get_objects():
        kind = type(each)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if code := getattr(each, "cr_code", None) or getattr(each, "ag_code", None) or getattr(each, "gi_code", None):
            name = f"{name} {code.co_qualname}"
        count = found.setdefault(name, [0, 0])
        count[0] += 1
        count[1] += sys.getsizeof(each)
    return found


def _writer(target: Path) -> Callable[..., None]:
    """Return a signal handler that writes the memory to a file."""

    def write(*_: Any) -> None:
        gc.collect()
        if not tracemalloc.is_tracing():
            tracemalloc.start(FRAMES)
        objects = _objects()
        statistics = tracemalloc.take_snapshot().statistics("traceback")
        traces = [[each.size, [[at.filename, at.lineno] for at in reversed(each.traceback)]] for each in statistics]
        partial = target.with_suffix(".partial")
        partial.write_text(json.dumps({"traces": traces, "objects": objects}))
        partial.rename(target)

    return write


def main() -> None:
    """Run the script."""
    target, *sys.argv = sys.argv[1:]
    signal.signal(signal.SIGUSR1, _writer(Path(target)))
    sys.path[0] = os.path.dirname(sys.argv[0])  # noqa: PTH120 - the empty name stays empty
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
