"""Work on large requests runs in threads, with a share for each owner; small work runs at once."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from tests.support.shares import as_user
from tests.support.waiting import until

ADA, BOB = Owner("ada"), Owner("bob")
LARGE = "x" * 40_000


class CurrentUser:
    """The user in whose name work is done, and work that waits for `end`."""

    def __init__(self) -> None:
        self.work = LargeWork()
        self.running: list[str] = []
        self.end = threading.Event()

    def start(self, owner: Owner) -> asyncio.Task[str]:
        return as_user(owner.identity, self.work.run(self._wait, LARGE))

    def _wait(self) -> str:
        self.running.append(threading.current_thread().name)
        self.end.wait(30)
        return "done"


@pytest.fixture
def users() -> Iterator[CurrentUser]:
    users = CurrentUser()
    yield users
    users.end.set()
    users.work.close()


def thread() -> str:
    return threading.current_thread().name


async def test_small_work_runs_at_once(users: CurrentUser) -> None:
    assert await users.work.run(thread, "x" * 1_000) == thread()


async def test_large_work_runs_in_thread(users: CurrentUser) -> None:
    assert (await users.work.run(thread, LARGE)).startswith("large-requests")


async def test_pieces_of_work_on_measured_values_run_like_one(users: CurrentUser) -> None:
    small, large = users.work.on("x" * 1_000), users.work.on("x", [LARGE])
    assert [await small.run(thread) for _ in range(2)] == [thread()] * 2
    assert all([(await large.run(thread)).startswith("large-requests") for _ in range(2)])


async def test_error_of_work_is_raised(users: CurrentUser) -> None:
    def fail() -> None:
        raise ApiError(400, "No.")

    with pytest.raises(ApiError, match=r"No\."):
        await users.work.run(fail, LARGE)


async def test_large_work_of_one_owner_leaves_thread_to_others(users: CurrentUser) -> None:
    tasks = [users.start(ADA) for _ in range(3)]
    await until(lambda: len(users.running) == 1)
    tasks.append(users.start(BOB))
    await until(lambda: len(users.running) == 2)
    users.end.set()
    assert await asyncio.gather(*tasks) == ["done"] * 4


async def test_only_owner_uses_all_threads(users: CurrentUser) -> None:
    tasks = [users.start(ANONYMOUS) for _ in range(3)]
    await until(lambda: len(users.running) == 2)
    users.end.set()
    await asyncio.gather(*tasks)


async def test_waiting_work_of_one_owner_is_limited(users: CurrentUser) -> None:
    tasks = [users.start(ADA) for _ in range(257)]
    await until(lambda: len(users.running) == 1)
    with pytest.raises(ApiError, match="too many large requests") as raised:
        await users.start(ADA)
    assert raised.value.status == 429
    users.end.set()
    await asyncio.gather(*tasks)


async def test_cancelled_work_gives_thread_back(users: CurrentUser) -> None:
    first = users.start(ADA)
    await until(lambda: len(users.running) == 1)
    first.cancel()
    await asyncio.wait([first])
    users.end.set()
    assert await users.start(ADA) == "done"
