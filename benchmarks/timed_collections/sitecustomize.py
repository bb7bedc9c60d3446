"""Times the garbage collections of a process that has this folder in PYTHONPATH: Python imports it at the start.

The process appends a line for each to the file that TIMED_COLLECTIONS names: the generation, the objects visited, the
milliseconds of CPU time of its thread, and those by the clock, in which other programs may have had the processor.
"""

import gc
import os
import time

_visited, _began, _began_at = 0, 0.0, 0.0


def _note(phase: str, about: dict[str, int]) -> None:
    global _began, _began_at, _visited  # noqa: PLW0603 - one process, one collection at a time
    if phase == "start":
        _visited = sum(len(gc.get_objects(each)) for each in range(about["generation"] + 1))
        _began, _began_at = time.thread_time(), time.perf_counter()
        return
    took, waited = (time.thread_time() - _began) * 1e3, (time.perf_counter() - _began_at) * 1e3
    os.write(_file, b"%d %d %.3f %.3f\n" % (about["generation"], _visited, took, waited))


if "TIMED_COLLECTIONS" in os.environ:
    _file = os.open(os.environ["TIMED_COLLECTIONS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    gc.callbacks.append(_note)
