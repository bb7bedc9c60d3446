"""A server with one endless task: it prints the process id of its fork server and waits to be killed."""

from __future__ import annotations

import asyncio
import sys

from llama_stack_responses.process_pool.pool import PoolLimits, Task, WorkerPool


async def main(module: str) -> None:
    """Run an endless task, and one that ends."""
    pool = WorkerPool(PoolLimits())
    waiting = asyncio.create_task(pool.run(Task(module, b"", 3600, 100, {"deed": "wait"})))
    await pool.run(Task(module, b"", 60, 100))
    assert pool.fork_server
    print(pool.fork_server.pid, flush=True)
    await waiting


asyncio.run(main(sys.argv[1]))
