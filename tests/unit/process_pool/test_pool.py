"""Tasks on foreign content end in time and within their bounds, and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.process_pool.fork_server_client import ForkServer
from llama_stack_responses.process_pool.pool import PoolLimits, Task, WorkerPool
from llama_stack_responses.process_pool.time_budget import TimeBudget
from tests.support.proc import has_ended
from tests.support.shares import as_user
from tests.support.waiting import until, wait_until

TASKS = f"{__package__}.tasks"


def task(deed: str = "", content: bytes = b"x", seconds: float = 60.0, text_bytes: int = 1000, **options: Any) -> Task:
    return Task(TASKS, content, seconds, text_bytes, {"deed": deed, **options})


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(PoolLimits(concurrency=2, concurrency_per_user=1, waiting_per_user=1))
    yield pool
    await pool.close()


def children(pid: int) -> list[int]:
    """Return the ids of the child processes that still run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(status.parent.name))
    return found


class SlowSocket(socket.socket):
    """A socket whose `send` returns when the process at the other end has ended."""

    def send(self, data: Any, flags: int = 0, /) -> int:
        sent = super().send(data, flags)
        ended = select.poll()
        ended.register(self, 0)
        ended.poll()
        return sent


def workers_of(pool: WorkerPool) -> list[int]:
    return children(pool.fork_server.pid) if pool.fork_server else []


async def test_task_runs_in_other_process(pool: WorkerPool) -> None:
    answer = await pool.run(task(content="ü".encode() * 200_000, text_bytes=10**6))
    assert answer["text"] == "ü" * 200_000
    assert int(answer["pid"]) != os.getpid()


async def test_task_without_content_can_end_while_server_sends_it(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ForkServer.start

    def start_slowly(self: ForkServer, module: str) -> tuple[int, socket.socket]:
        number, worker = start(self, module)
        slow = SlowSocket(fileno=worker.detach())
        slow.setblocking(False)
        return number, slow

    monkeypatch.setattr(ForkServer, "start", start_slowly)
    answer = await pool.run(task(content=b""))
    assert (answer["text"], answer.get("problem")) == ("", None)


async def test_tasks_share_no_state(pool: WorkerPool) -> None:
    assert [(await pool.run(task("remember")))["text"] for _ in range(2)] == ["1", "1"]


async def test_task_over_time_limit_is_killed_without_blocking_loop(pool: WorkerPool) -> None:
    running = asyncio.create_task(pool.run(task("hold the interpreter", seconds=1.0)))
    turns = 0
    while not running.done():
        turns += 1
        await asyncio.sleep(0.001)
    assert (await running)["problem"] == "seconds"
    assert turns > 10
    await until(lambda: not workers_of(pool))
    assert (await pool.run(task()))["text"] == "x"


async def test_task_of_cancelled_caller_is_killed(pool: WorkerPool) -> None:
    running = asyncio.create_task(pool.run(task("wait")))
    await until(lambda: bool(workers_of(pool)))
    running.cancel()
    await until(lambda: not workers_of(pool))
    assert (await pool.run(task()))["text"] == "x"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (task("take memory", bytes=4 * 2**30), "memory"),
        (task("end"), "memory"),
        (task("raise"), "broken"),
        (task(content=b"x" * 1001), "characters"),
        (task("answer with a long head"), "broken"),
        (task("answer with no texts"), "broken"),
    ],
)
async def test_failed_task_reports_its_problem(pool: WorkerPool, given: Task, problem: str) -> None:
    assert (await pool.run(given))["problem"] == problem


async def test_task_cannot_write_files(pool: WorkerPool, tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert "problem" in await pool.run(task("write a file", path=str(path)))
    assert not path.exists() or path.stat().st_size == 0


async def test_owner_with_many_tasks_does_not_delay_other_owner(pool: WorkerPool) -> None:
    flood = [as_user("flood", pool.run(task("wait", seconds=3600))) for _ in range(2)]
    await until(lambda: bool(workers_of(pool)))
    assert (await as_user("other", pool.run(task())))["text"] == "x"
    assert not any(each.done() for each in flood)
    with pytest.raises(ApiError) as refused:
        await as_user("flood", pool.run(task()))
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    for each in flood:
        each.cancel()


async def test_time_budget_of_request_limits_its_tasks(pool: WorkerPool) -> None:
    budget = TimeBudget(0.5)
    assert (await pool.run(task("wait"), budget))["problem"] == "budget"
    assert (await pool.run(task(), budget))["problem"] == "budget"
    assert budget.left <= 0
    assert (await pool.run(task()))["text"] == "x"


async def test_killed_template_is_replaced(pool: WorkerPool) -> None:
    await pool.run(task())
    assert pool.fork_server
    killed = pool.fork_server.pid
    os.kill(killed, signal.SIGKILL)
    await until(lambda: has_ended(killed))
    with pytest.raises(ApiError) as refused:
        await pool.run(task())
    assert refused.value.status == 503
    assert (await pool.run(task()))["text"] == "x"


async def test_module_that_cannot_be_imported_is_503(pool: WorkerPool) -> None:
    with pytest.raises(ApiError) as refused:
        await pool.run(Task("no.such.module", b"", 60, 100))
    assert refused.value.status == 503
    assert (await pool.run(task()))["text"] == "x"


async def test_template_runs_only_while_needed() -> None:
    pool = WorkerPool(PoolLimits(idle_seconds=0.0))
    assert pool.fork_server is None
    await pool.run(task())
    await until(lambda: pool.fork_server is None)
    await pool.close()


async def test_closed_pool_leaves_no_process(pool: WorkerPool) -> None:
    running = asyncio.create_task(pool.run(task("wait")))
    await until(lambda: bool(workers_of(pool)))
    assert pool.fork_server
    pids = [pool.fork_server.pid, *workers_of(pool)]
    await pool.close()
    assert all(map(has_ended, pids))
    running.cancel()


def test_killed_server_leaves_no_process() -> None:
    server = Path(__file__).with_name("server.py")
    path = {"PYTHONPATH": ":".join(each for each in sys.path if each)}
    with subprocess.Popen([sys.executable, server, TASKS], stdout=subprocess.PIPE, env=os.environ | path) as process:
        assert process.stdout
        fork_server = int(process.stdout.readline())
        pids = [fork_server, *children(fork_server)]
        assert len(pids) > 1
        process.kill()
    wait_until(lambda: all(map(has_ended, pids)))
