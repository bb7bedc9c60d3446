"""Times the garbage collections of a process that has this folder in PYTHONPATH: Python imports it at the start.

The process appends a line for each to the file that TIMED_COLLECTIONS names: the generation, the objects visited, and
the milliseconds of CPU time of its thread.
"""

import gc
import os
import time

_visited, _began = 0, 0.0


def _note(phase: str, about: dict[str, int]) -> None:
    global _began, _visited  # noqa: PLW0603 - one process, one collection at a time
    if phase == "start":
        _visited = sum(len(gc.get_objects(each)) for each in range(about["generation"] + 1))
        _began = time.thread_time()
        return
    took = (time.thread_time() - _began) * 1e3
    os.write(_file, b"%d %d %.3f\n" % (about["generation"], _visited, took))


if "TIMED_COLLECTIONS" in os.environ:
    _file = os.open(os.environ["TIMED_COLLECTIONS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    gc.callbacks.append(_note)
