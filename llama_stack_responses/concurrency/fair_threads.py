"""The threads to which the event loop leaves work, where users take turns."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from .share import current_share
from .waiting_work import WaitingWork


class _Call:
    """A call that waits for a thread."""

    __slots__ = ("_call", "future")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.future: Future[Any] = Future()

    def run(self) -> None:
        """Run it, unless it was cancelled."""
        future, call = self.future, self._call
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 (the waiting task raises it)
            future.set_exception(error)
        else:
            future.set_result(result)
        # The traceback of an error refers to this frame, and the future to the error: the cycle would keep all that the
        # call was given until the cyclic garbage collector runs.
        del self, future, call


class FairThreads(ThreadPoolExecutor):
    """Threads for the work of all users; the next call is one of the user who has least in threads.

    As the default executor of an event loop, it also has the calls of `asyncio.to_thread`, of the host's too.
    """

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="work")
        self._order = threading.Lock()
        self._works: WaitingWork[_Call] = WaitingWork()
        self._running: Counter[Hashable] = Counter()

    def submit[**Given, Result](
        self, fn: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs
    ) -> Future[Result]:
        """Queue a call, as one of the user whose work the current task does."""
        call = _Call(partial(fn, *args, **kwargs))
        # Whichever thread is free next takes the call whose turn it is then: there are as many of these as calls.
        with self._order:
            super().submit(self._run_next)
            self._works.add(call, current_share())
        return call.future

    def _run_next(self) -> None:
        with self._order:
            turn = self._works.next(self._running.__getitem__)
            assert turn, "there is a call for each time that this runs"
            share, call = turn
            self._works.take(share.user)
            self._running[share.user] += 1
        try:
            call.run()
        finally:
            del turn, call  # for the same reason: the frame of `run` refers to this one
            with self._order:
                self._running[share.user] -= 1
                if not self._running[share.user]:
                    del self._running[share.user]
