"""Helpers for concurrent tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable
from typing import Any


async def gather_or_cancel(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines concurrently. On the first error, cancel those that are still running."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _end(tasks)
        # An exception whose traceback includes this frame would otherwise keep the tasks and their data alive until the
        # cyclic garbage collector runs.
        tasks.clear()


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
