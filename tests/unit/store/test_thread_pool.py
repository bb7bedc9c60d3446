"""Threads that take jobs from one queue."""

from __future__ import annotations

import asyncio
import threading

from llama_stack_responses.store.thread_pool import ThreadPool, ThreadTask


class Calls:
    """Runs each call without an argument."""

    def handle(self, jobs: list[ThreadTask[None]]) -> list[ThreadTask[None]]:
        for job in jobs:
            job.result = job.call(None)
        return []

    def close(self) -> None:
        pass


async def test_thread_starts_once_a_job_waits_that_no_other_has_taken() -> None:
    pool = ThreadPool("on-demand", Calls, threads=2, group=1)
    began, goes_on = threading.Semaphore(0), threading.Event()

    def blocks(_: None) -> str:
        began.release()
        goes_on.wait()
        return threading.current_thread().name

    def threads() -> int:
        return sum(each.name == "on-demand" for each in threading.enumerate())

    first = pool.submit(blocks)
    await asyncio.to_thread(began.acquire)
    others = [pool.submit(blocks)]
    assert threads() == 1, "it may take the second job soon"
    others += [pool.submit(blocks) for _ in range(8)]
    await asyncio.to_thread(began.acquire)
    assert threads() == 2
    goes_on.set()
    assert {await each for each in (first, *others)} == {"on-demand"}
    await pool.stop()
    assert threads() == 0
