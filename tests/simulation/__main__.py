"""Replay the schedule of a seed with its trace, or run the schedules of many seeds.

python -m tests.simulation --seed 1065
python -m tests.simulation --from 0 --count 5000
python -m tests.simulation --count 300 --bug "missing fence"
python -m tests.simulation --count 300 --bug "lost wake-up" --bursts
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.simulation import BURSTS, Outcome, simulate


def main() -> int:
    """Run what the options say; return 1 if a promise was broken."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, help="replay this schedule, and print its trace")
    options.add_argument("--from", type=int, default=0, dest="first", help="the first of many seeds")
    options.add_argument("--count", type=int, default=1000, help="how many")
    options.add_argument("--partitions", type=int, help="those of the store; else by the seed")
    options.add_argument("--failovers", action="store_true", help="primaries die; else with some seeds")
    options.add_argument("--bursts", action="store_true", help="only bursts of jobs, in which nothing goes wrong")
    options.add_argument("--bug", choices=MUTATIONS, help="put this bug in")
    given = options.parse_args()
    kind = {"partitions": given.partitions, "replicated": given.failovers or None}
    run = partial(simulate, **kind, bursts=1.0 if given.bursts else BURSTS)
    with mutated(given.bug) if given.bug else nullcontext():
        if given.seed is not None:
            return _replay(given.seed, run)
        return _run(given.first, given.count, run)


def _replay(seed: int, run: Callable[..., Outcome]) -> int:
    outcome = run(seed, traced=True)
    print(*outcome.trace, *outcome.violations or ["no promise is broken"], sep="\n")
    return int(bool(outcome.violations))


def _run(first: int, count: int, run: Callable[..., Outcome]) -> int:
    began, failed = time.monotonic(), 0
    for seed in range(first, first + count):
        if violations := run(seed).violations:
            failed += 1
            print(f"seed {seed}: {violations[0]}", flush=True)
    print(f"{count} schedules in {time.monotonic() - began:.0f} s, {failed} failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
