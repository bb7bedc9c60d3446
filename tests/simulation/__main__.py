"""Replay the schedule of a seed with its trace, or run the schedules of many seeds on all cores.

python -m tests.simulation --seed 1065
python -m tests.simulation --from 0 --count 5000
python -m tests.simulation --count 300 --bug "missing fence"
python -m tests.simulation --count 300 --bug "lost wake-up" --bursts
python -m tests.simulation --count 1000 --packing
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Final

from tests.simulation.many import outcomes_of
from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.packing import simulate_packing
from tests.simulation.simulation import BURSTS, Outcome, simulate

_INTERRUPTED: Final = 130


def main() -> int:
    """Run what the options say; return 1 if a promise was broken, and 130 if Ctrl-C has ended it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, help="replay this schedule, and print its trace")
    options.add_argument("--from", type=int, default=0, dest="first", help="the first of many seeds")
    options.add_argument("--count", type=int, default=1000, help="how many")
    options.add_argument("--processes", type=_positive, default=_cores(), help="how many run side by side")
    options.add_argument("--packing", action="store_true", help="of servers that pack idle responses")
    options.add_argument("--partitions", type=int, help="those of the store; else by the seed")
    options.add_argument("--failovers", action="store_true", help="primaries die; else with some seeds")
    options.add_argument("--bursts", action="store_true", help="only bursts of jobs, in which nothing goes wrong")
    options.add_argument("--bug", choices=MUTATIONS, help="put this bug in")
    given = options.parse_args()
    if given.packing and (given.partitions or given.failovers or given.bursts or given.bug):
        options.error("--packing goes with --seed, --from, --count and --processes only")
    kind = {"partitions": given.partitions, "replicated": given.failovers or None}
    run = simulate_packing if given.packing else partial(simulate, **kind, bursts=1.0 if given.bursts else BURSTS)
    if given.seed is not None:
        return _replay(given.seed, run, given.bug)
    seeds = range(given.first, given.first + given.count)
    return _run(outcomes_of(seeds, run, bug=given.bug, processes=given.processes))


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1 is needed")
    return number


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _replay(seed: int, run: Callable[..., Outcome], bug: str | None) -> int:
    with mutated(bug) if bug else nullcontext():
        outcome = run(seed, traced=True)
    print(*outcome.trace, *outcome.violations or ["no promise is broken"], sep="\n")
    return int(bool(outcome.violations))


def _run(outcomes: Iterator[Outcome]) -> int:
    began, done, failed, was_interrupted = time.monotonic(), 0, 0, False
    try:
        for outcome in outcomes:
            done += 1
            if outcome.violations:
                failed += 1
                print(f"seed {outcome.seed}: {outcome.violations[0]}", flush=True)
    except KeyboardInterrupt:
        was_interrupted = True
    seconds = time.monotonic() - began
    print(f"{done} schedules in {seconds:.0f} s, {done / seconds * 60:.0f} a minute, {failed} failed")
    return _INTERRUPTED if was_interrupted else int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
