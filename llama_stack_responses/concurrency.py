"""Several things at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def at_once(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Does all of it at once. With the first error, what else goes on is given up."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
