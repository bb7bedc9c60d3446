"""The loops of Python code that one callback of the event loop goes through often, as over all items of a history.

with walks_of_event_loop(1000) as walks:
    await work()
assert walks == {}

Loops are counted instead of timed, since counts are the same on every machine. Loops within C code are not counted.
"""

import sys
import threading
from asyncio import Handle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Final
from unittest.mock import patch

_TOOL: Final = sys.monitoring.PROFILER_ID


@contextmanager
def walks_of_event_loop(more_than: int) -> Iterator[dict[str, int]]:
    """Yield the loops that a callback in this thread repeats more often, by function: how often, at most.

    They are known when the block ends.
    """
    walks: dict[str, int] = {}
    loops = Counter[tuple[CodeType, int]]()
    thread = threading.get_ident()
    run_handle = Handle._run

    def jumped(code: CodeType, offset: int, destination: int) -> None:
        if destination < offset and threading.get_ident() == thread:
            loops[code, destination] += 1

    def end_callback() -> None:
        for (code, _), count in list(loops.items()):
            if count > more_than:
                name = f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}"
                walks[name] = max(count, walks.get(name, 0))
        loops.clear()

    def run(handle: Handle) -> None:
        run_handle(handle)
        end_callback()

    sys.monitoring.use_tool_id(_TOOL, "walks")
    sys.monitoring.register_callback(_TOOL, sys.monitoring.events.JUMP, jumped)
    sys.monitoring.set_events(_TOOL, sys.monitoring.events.JUMP)
    try:
        with patch.object(Handle, "_run", run):
            yield walks
    finally:
        sys.monitoring.set_events(_TOOL, sys.monitoring.events.NO_EVENTS)
        sys.monitoring.free_tool_id(_TOOL)
        end_callback()
