"""Seeded schedules of the real service break no promise, and find the bugs that are put in on purpose."""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Final

import pytest

from tests.simulation.many import outcomes_of
from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.simulation import Outcome, simulate

FRESH_SECONDS: Final = 12.0
"""Duration of each test with random seeds. Together with the other tests here, each run simulates for a minute."""

FIXED: Final = range(20)
"""Seeds that each run has. Even ones have a store without partitions, odd ones have one with eight."""

OF_ALL_KINDS: Final = 8
"""A seed whose schedule has jobs, readers, usage, and servers that take over."""

OFTEN: Final = (
    "events from the checkpoint",
    "commits out of order",
    "forgotten key",
    "key after response",
    "join without condition",
    "turn after response",
    "fence of one partition",
    "unseen partition",
)
"""Bugs that one of a few schedules finds. Which ones do changes with the code."""

BUDGET: Final = 1_000
"""Schedules within which each bug is found: those of a minute of an idle processor."""


KNOWN: Final = {
    "claim cuts lease": 35,
    "clock of the machine": 177,
    "commits out of order": 6,
    "events from the checkpoint": 5,
    "fence of one partition": 15,
    "garbage without condition": 14,
    "key after response": 9,
    "lost wake-up": 81,
    "new message id": 148,
    "no deadline": 38,
    "note applied twice": 271,
    "note of a primary": 118,
    "other partition unnoted": 101,
    "repeated join": 228,
    "unseen partition": 7,
    "unsettled renewal": 23,
}
"""Seeds of short schedules that found bugs when they were written down. They are tried first, since a search takes up to
half a minute of the processor; it follows if they find nothing any more, and what it finds is printed.
"""

IN_BURSTS: Final = ("lost wake-up",)
"""Rarer bugs that only a burst of jobs finds, in which nothing else goes wrong."""

IN_FAILOVERS: Final = ("note of a primary",)
"""Bugs that only a store finds whose primaries die."""


def failing(seeds: Iterable[int], run: Callable[[int], Outcome] = simulate) -> Outcome | None:
    """Return the first schedule that breaks a promise; None if none does."""
    return next((outcome for outcome in map(run, seeds) if outcome.violations), None)


def seeds_for(name: str) -> Iterable[int]:
    """Return the seeds within which a bug is found."""
    return chain((KNOWN[name],) if name in KNOWN else (), range(BUDGET))


def told(outcome: Outcome | None) -> str:
    """Return how to replay a schedule; empty for None."""
    if outcome is None:
        return ""
    return f"{outcome.violations[0]}. Replay it: make simulate SIMULATION='--seed {outcome.seed}'"


def run_for(seconds: float, seeds: Iterable[int]) -> tuple[int, Outcome | None]:
    """Run the schedules of seeds for some seconds; return how many, and the first that fails."""
    until = time.monotonic() + seconds
    for number, seed in enumerate(seeds):
        if time.monotonic() >= until:
            return number, None
        if (outcome := simulate(seed)).violations:
            return number + 1, outcome
    raise AssertionError("there are no more seeds")


def test_fixed_seeds_break_no_promise() -> None:
    assert told(failing(FIXED)) == ""


@pytest.mark.parametrize("part", range(4))
def test_fresh_seeds_break_no_promise(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    """In one part, primaries die with a quarter of the seeds: about one of 2,000 of these still breaks a promise."""
    first = secrets.randbelow(2**40)
    seeds = (seed for seed in itertools.count(first) if part == 0 or seed % 4 != 3)
    count, failed = run_for(FRESH_SECONDS, seeds)
    with capsys.disabled():
        print(f"\nsimulation: {count} schedules from seed {first}")
    assert told(failed) == ""


def test_seed_decides_the_whole_schedule() -> None:
    for seed in (3, 4, 17):
        first, again = simulate(seed, traced=True), simulate(seed, traced=True)
        assert first.trace
        assert first == again


@pytest.mark.extended
def test_seed_decides_the_schedule_in_another_process_too() -> None:
    """Sets of strings have another order there, and so has what the code does in their order."""
    outcome = simulate(OF_ALL_KINDS, traced=True, partitions=8, replicated=True)
    command = [sys.executable, "-m", "tests.simulation", f"--seed={OF_ALL_KINDS}", "--partitions=8", "--failovers"]
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    there = subprocess.check_output(command, env={**os.environ, "PYTHONHASHSEED": other}, text=True)
    assert there.splitlines() == [*outcome.trace, "no promise is broken"]


def test_several_processes_have_the_schedules_of_one() -> None:
    bug = "events from the checkpoint"
    seeds = range(KNOWN[bug] - 2, KNOWN[bug] + 2)
    with mutated(bug):
        wanted = list(map(simulate, seeds))
    assert any(outcome.violations for outcome in wanted)
    assert list(outcomes_of(seeds, simulate, bug=bug, processes=2)) == wanted


@pytest.mark.relatives
@pytest.mark.parametrize("name", OFTEN)
def test_bug_put_in_on_purpose_is_found(name: str) -> None:
    with mutated(name):
        assert failing(seeds_for(name)) is not None


@pytest.mark.whole_run  # up to a minute of the processor each
@pytest.mark.parametrize("name", sorted(MUTATIONS.keys() - set(OFTEN)))
def test_rarer_bug_put_in_on_purpose_is_found(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = partial(simulate, bursts=1.0) if name in IN_BURSTS else simulate
    run = partial(simulate, partitions=8, replicated=True) if name in IN_FAILOVERS else run
    with mutated(name):
        found = failing(seeds_for(name), run)
    assert found is not None
    if found.seed != KNOWN.get(name, found.seed):
        with capsys.disabled():
            print(f"\nsimulation: seed {found.seed} finds '{name}', seed {KNOWN[name]} no longer does")
