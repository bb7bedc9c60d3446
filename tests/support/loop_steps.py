"""How often something is done in one callback of the event loop.

with steps_of_event_loop() as steps:
    monkeypatch.setattr(module, "work", steps.counted(module.work))
    await work()
assert steps.most["work"] <= 100

Calls are counted instead of timed, since counts are the same on every machine; those of other threads do not count.
"""

import threading
from asyncio import Handle
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from unittest.mock import patch


class Steps:
    """Counts, by name.

    Attributes:
        most: how often something was done in one callback, at most.
        total: how often it was done, also in other threads.
    """

    def __init__(self) -> None:
        self.most, self.total = Counter[str](), Counter[str]()
        self._now, self._thread = Counter[str](), threading.get_ident()

    def note(self, name: str) -> None:
        """Count what is done once."""
        self.total[name] += 1
        if threading.get_ident() == self._thread:
            self._now[name] += 1

    def counted[**Given, Result](self, call: Callable[Given, Result]) -> Callable[Given, Result]:
        """Return a function whose calls are counted under its name."""

        @wraps(call)
        def count(*given: Given.args, **named: Given.kwargs) -> Result:
            self.note(call.__name__)
            return call(*given, **named)

        return count

    def end_callback(self) -> None:
        """Have what follows counted as that of another callback."""
        self.most |= self._now
        self._now.clear()


@contextmanager
def steps_of_event_loop() -> Iterator[Steps]:
    """Yield the counts of callbacks of the event loop of this thread."""
    steps, run_handle = Steps(), Handle._run

    def run(handle: Handle) -> None:
        run_handle(handle)
        steps.end_callback()

    with patch.object(Handle, "_run", run):
        yield steps
