"""The clock of an SQLite file is the same for all processes that have the file open, and does not jump."""

from __future__ import annotations

import fcntl
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Final

import pytest

from llama_stack_responses.store.records import Put
from llama_stack_responses.store.sqlite import SqliteRecords
from llama_stack_responses.store.sqlite_clock import SqliteClock, this_boot

MONTH: Final = 31 * 86_400.0


class Machine:
    """The clocks of a machine, and what it calls its monotonic clock."""

    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.elapsed = 500.0
        self.boot = "boot-1"

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.elapsed += seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def opened(machine: Machine, tmp_path: Path) -> Iterator[Callable[..., SqliteClock]]:
    """Return a function that returns the clock of another process, which may be some seconds wrong."""
    clocks: list[SqliteClock] = []

    def open_clock(ahead: float = 0.0, folder: Path = tmp_path) -> SqliteClock:
        clock = SqliteClock(
            folder / "responses.db", lambda: machine.wall + ahead, lambda: machine.elapsed, lambda: machine.boot
        )
        clocks.append(clock)
        return clock

    yield open_clock
    for each in clocks:
        each.close()


def test_clock_shows_the_time_of_the_machine(machine: Machine, opened: Callable[..., SqliteClock]) -> None:
    clock = opened()
    assert clock() == machine.wall
    machine.passes(100)
    assert clock() == machine.wall


@pytest.mark.parametrize("seconds", [MONTH, -MONTH, 61.0])
def test_jump_of_the_machine_is_not_followed(
    machine: Machine, opened: Callable[..., SqliteClock], seconds: float
) -> None:
    clock = opened()
    before = clock()
    machine.wall += seconds
    assert clock() == before
    machine.passes(10)
    assert clock() == before + 10
    machine.wall -= seconds
    assert clock() == machine.wall


def test_steps_below_a_minute_are_followed_also_by_processes_that_start_later(
    machine: Machine, opened: Callable[..., SqliteClock]
) -> None:
    clock = opened()
    for _ in range(5):
        machine.wall += 50
        assert clock() == machine.wall
    assert opened()() == machine.wall


def test_process_with_another_clock_has_that_of_the_processes_before(
    machine: Machine, opened: Callable[..., SqliteClock]
) -> None:
    first = opened()
    first()
    wrong = opened(ahead=MONTH)
    assert wrong() == first()
    machine.passes(100)
    assert wrong() == first() == machine.wall


def test_time_that_was_set_is_followed_once_no_process_has_the_file_open(
    machine: Machine, opened: Callable[..., SqliteClock]
) -> None:
    first, second = opened(), opened()
    before = first(), second()
    machine.wall += MONTH
    first.close()
    assert first() == before[0]
    first.close()
    second.close()
    assert first() == second() == machine.wall


def test_difference_of_an_earlier_boot_does_not_count(machine: Machine, opened: Callable[..., SqliteClock]) -> None:
    opened()()
    machine.boot, machine.elapsed = "boot-2", 3.0
    # As on a file system of two machines: the other one holds the lock.
    machine.wall += MONTH
    assert opened()() == machine.wall


@pytest.mark.parametrize("content", ["", "boot-1", "boot-1 soon\n", "\0" * 300])
def test_unreadable_difference_does_not_count(
    machine: Machine, opened: Callable[..., SqliteClock], tmp_path: Path, content: str
) -> None:
    opened()()
    (tmp_path / "responses.db-clock").write_text(content)
    machine.wall += MONTH
    assert opened()() == machine.wall


def test_without_a_common_monotonic_clock_or_a_file_each_process_has_its_own(
    machine: Machine, opened: Callable[..., SqliteClock], tmp_path: Path
) -> None:
    machine.boot = ""
    assert opened()() == machine.wall
    assert list(tmp_path.iterdir()) == []
    machine.boot = "boot-1"
    (tmp_path / "responses.db-clock").symlink_to("elsewhere")
    clock = opened()
    before = clock()
    machine.wall += MONTH
    assert clock() == before


def test_threads_that_ask_at_once_open_the_file_once(machine: Machine, tmp_path: Path) -> None:
    opening, together = list[int](), Barrier(4)

    def boot() -> str:
        opening.append(1)
        time.sleep(0.02)
        return machine.boot

    clock = SqliteClock(tmp_path / "responses.db", lambda: machine.wall, lambda: machine.elapsed, boot)

    def ask(_: int) -> float:
        together.wait()
        return clock()

    with ThreadPoolExecutor(4) as threads:
        assert {*threads.map(ask, range(4))} == {machine.wall}
    assert opening == [1]
    clock.close()


def test_this_machine_names_its_boot() -> None:
    assert this_boot() == this_boot() != ""


async def test_lease_in_a_file_does_not_expire_when_the_clock_jumps(
    machine: Machine, opened: Callable[..., SqliteClock], tmp_path: Path
) -> None:
    here = SqliteRecords(tmp_path / "responses.db", clock=opened())
    await here.commit([Put("lease", b"here", await here.now() + 10)])
    machine.wall += MONTH
    there = SqliteRecords(tmp_path / "responses.db", clock=opened())
    assert [list(await each.get_many(["lease"])) for each in (here, there)] == [["lease"], ["lease"]]
    machine.passes(11)
    assert [await each.get_many(["lease"]) for each in (here, there)] == [{}, {}]
    for each in (here, there):
        await each.close()


async def test_records_hold_the_clock_of_their_file_until_they_are_closed(tmp_path: Path) -> None:
    path = tmp_path / "responses.db-clock"
    records = SqliteRecords(tmp_path / "responses.db")
    await records.get_many(["key"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with path.open() as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        await records.close()
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
