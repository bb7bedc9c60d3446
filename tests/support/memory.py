"""The peak memory of a server and its descendants, and the objects that a test's process holds."""

import gc
from contextlib import suppress
from pathlib import Path

from tests.support.descendants import descendants


class PeakMemory:
    """A measurement that starts with the object.

    Args:
        pid: process id of the server.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: dict[int, float] = {}
        for each in descendants(pid):
            # "5" resets the peak to the current value (Linux, proc_pid_clear_refs(5)).
            with suppress(OSError):
                Path(f"/proc/{each}/clear_refs").write_text("5")
            self._before[each] = _megabytes(each, "VmRSS")

    def of_server(self) -> float:
        """Return the server's peak growth, in megabytes."""
        return _megabytes(self._pid, "VmHWM") - self._before[self._pid]

    def of_all(self) -> float:
        """Return the sum of the peak growth of the server and its current descendants, in megabytes."""
        grown = (_megabytes(each, "VmHWM") - self._before.get(each, 0.0) for each in descendants(self._pid))
        return sum(max(each, 0.0) for each in grown)


def count_of(kind: type) -> int:
    """Return how many objects of a class exist, also of one without weak references."""
    return sum(type(each) is kind for each in gc.get_objects())


def _megabytes(pid: int, name: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0  # it has ended
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:")), 0.0)
