"""Virtual time, and processes with event loops of their own that one seeded scheduler steps.

`World` has the time and all that is yet to happen. A `Process` is an asyncio event loop without sockets, threads and a
clock of its own: what is ready in it runs in order, as asyncio promises, and the world chooses by its seed which process
runs next. The time stands still while any process can run, and then jumps to what is next.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

EPOCH: Final = 1_800_000_000.0
"""The time at which a world begins, in seconds since the epoch."""

_MOST_STEPS: Final = 400_000
"""Steps after which a schedule counts as one that never ends."""
_BETWEEN: Final = 16
"""Steps between two looks whether a schedule is done."""
_BURIALS: Final = 60
_LAST_STEPS: Final = 200


class Endless(Exception):  # noqa: N818 - a verdict
    """A schedule did not come to its end."""


class World:
    """The time, and all that is yet to happen.

    Args:
        seed: decides all choices.
        traced: whether the trace is kept, which takes a third of the time.

    Attributes:
        now: seconds since the epoch.
        random: the choices of the schedule.
        processes: all processes, also those that were killed.
        trace: who did what when, a line each.
        defects: what went wrong that no process may do, such as an error that nothing catches.
        active: the processes in which something is ready.
    """

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.now = EPOCH
        self.random = Random(seed)
        self.processes: list[Process] = []
        self.trace: list[str] = []
        self.traced = traced
        self.defects: list[str] = []
        self._events: list[tuple[float, int, Process | None, Callable[[], object] | asyncio.Handle]] = []
        self.active: dict[Process, None] = {}
        self._count = self._steps = 0
        self._running: Process | None = None

    def log(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        if self.traced:
            self.trace.append(f"{self.now - EPOCH:10.3f}  {who:9} {what}")

    def at(self, when: float, call: Callable[[], object] | asyncio.Handle, process: Process | None = None) -> None:
        """Have something happen at a time: in a process, unless it was killed by then, or outside of all."""
        self._count += 1
        heappush(self._events, (when, self._count, process, call))

    def after(self, seconds: float, call: Callable[[], object], process: Process | None = None) -> None:
        """Have something happen after some seconds; as `at`."""
        self.at(self.now + seconds, call, process)

    def run_until(self, done: Callable[[], bool], until: float) -> bool:
        """Run until `done` or a time, in seconds since the epoch; return whether `done`.

        Raises:
            Endless: it takes too many steps.
        """
        try:
            while not done():
                for _ in range(_BETWEEN):
                    if not self._step(until):
                        return done()
                self._steps += _BETWEEN
                if self._steps > _MOST_STEPS:
                    raise Endless(f"the schedule has not ended after {_MOST_STEPS} steps")
            return True
        finally:
            self.enter(None)

    def enter(self, process: Process | None) -> None:
        """Let asyncio take a process for the one that runs; None for none. Most steps are of the one before."""
        if process is not self._running:
            self._running = process
            events._set_running_loop(process)
            sys.set_asyncgen_hooks(firstiter=None, finalizer=process and process.finalize)

    def _step(self, until: float) -> bool:
        """Run a process once, or go on to what is next; return False if that is after `until`."""
        now = self.now
        if self.active and (runnable := [each for each in self.active if each.paused_until <= now]):
            (runnable[0] if len(runnable) == 1 else self.random.choice(runnable)).run_once()
            return True
        if not self._events or self._events[0][0] > until:
            self.now = max(now, until)
            return False
        when, _, process, call = heappop(self._events)
        if when > now:
            self.now = when
        if process is None:
            assert not isinstance(call, asyncio.Handle)
            call()
        elif isinstance(call, asyncio.Handle):
            process.add(call)
        else:
            process.ready(call)
        return True

    def end(self) -> None:
        """End all processes, so that nothing of them is left."""
        self._events.clear()
        for each in self.processes:
            each.bury()
        self.enter(None)


_EventLoop: Any = asyncio.AbstractEventLoop
"""It has forty more methods, which nothing here calls."""


class Process(_EventLoop):  # type: ignore[misc]
    """A process: its event loop, until it is killed.

    Args:
        world: the world.
        name: what the trace calls it.

    Attributes:
        alive: whether it runs. One that was killed never does anything again.
        buried: whether the schedule is over, and everything of it ends.
        paused_until: it stands still until then, in seconds since the epoch.
        clock_ahead: seconds by which the clock of its machine is ahead.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.alive, self.buried = True, False
        self.paused_until = self.clock_ahead = 0.0
        self._ready = deque[asyncio.Handle]()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._threads: dict[Callable[[], None], None] = {}
        world.processes.append(self)

    def ready(self, call: Callable[[], object]) -> None:
        """Have something done next, from outside."""
        self.add(asyncio.Handle(call, (), self, contextvars.Context()))

    def add(self, handle: asyncio.Handle) -> None:
        """Have a callback of asyncio run next."""
        if self.alive or self.buried:
            self._ready.append(handle)
            self.world.active[self] = None

    def log(self, what: str) -> None:
        """Add a line to the trace."""
        self.world.log(self.name, what)

    def start(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Start a task from outside."""
        self.ready(lambda: self.create_task(work()))

    def wall(self) -> float:
        """Return the time of the clock of its machine, in seconds since the epoch."""
        return self.world.now + self.clock_ahead

    def set_clock(self, ahead: float) -> None:
        """Set the clock of its machine to be ahead by some seconds, or behind."""
        self.clock_ahead = ahead
        self.log(f"has a clock that is ahead by {ahead:.0f} s")

    def pause(self, seconds: float) -> None:
        """Stand still for a time, as a machine that sleeps; afterwards everything goes on."""
        self.paused_until = self.world.now + seconds
        self.world.after(seconds, lambda: None)
        self.log(f"stands still for {seconds:.1f} s")

    def kill(self) -> None:
        """End at once: what waits is never heard of again."""
        self.end()
        self.log("is killed")

    def end(self) -> None:
        """Do nothing any more."""
        self.alive = False
        self._ready.clear()
        self.world.active.pop(self, None)

    def run_once(self) -> None:
        """Run what is ready now."""
        self.world.enter(self)
        ready = self._ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
            if not ready:  # also if it was killed
                self.world.active.pop(self, None)
                return

    def bury(self) -> None:
        """End all tasks. Nothing that they do on the way reaches anyone."""
        self.buried = True
        for call in list(self._threads):
            self.call_soon(call)
        for _ in range(_BURIALS):
            for task in list(self._tasks):
                task.cancel()
            for _ in range(_LAST_STEPS):
                if not self._ready:
                    break
                self.run_once()
            if not self._tasks:
                break
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._tasks.clear()
        self._ready.clear()

    def finalize(self, generator: Any) -> None:
        """Close an asynchronous generator that was garbage collected before it ended."""
        self.ready(lambda: self.create_task(generator.aclose()))

    # What asyncio asks of an event loop.

    def time(self) -> float:
        return self.world.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.add(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.world.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.buried:
            self.world.at(when, handle, self)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **_: Any,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a call of a thread at once, and return its result a little later."""
        future = self.create_future()

        def run() -> None:
            if self._threads.pop(run, False) is False or future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - the waiting task raises it
                future.set_exception(error)
            else:
                future.set_result(result)

        self._threads[run] = None
        if self.buried:
            self.call_soon(run)
        else:
            self.call_later(self.world.random.uniform(0.0, 0.002), run)
        return future

    def set_default_executor(self, executor: Any) -> None:
        pass

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.buried:
            return
        error = context.get("exception")
        self.world.defects.append(f"{self.name}: {context['message']}: {error!r}")
        self.log(f"DEFECT {context['message']}: {error!r}")
