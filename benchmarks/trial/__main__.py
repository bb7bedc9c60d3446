"""Run the rows, and print the table."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import benchmarks.trial
from benchmarks.trial.outcome import Outcome, heading, row
from benchmarks.trial.rows import ROWS, STORES
from benchmarks.trial.site import Trial
from tests.support.stack import Host


def run(name: str, store: str, host: Host, folder: Path, *, short: bool) -> Outcome:
    """Run one row on one store, with its files in a folder, and say how it goes on."""
    began = time.monotonic()

    def say(line: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:6.0f} s  {name} on {store}: {line}\n")
        sys.stderr.flush()

    say("starts")
    outcome = ROWS[name][0](Trial(name, store, short, folder, host, say))
    say("; ".join(outcome.faults) or "well")
    return outcome


def main() -> int:
    """Return 1 if a row has a fault, else 0."""
    parser = argparse.ArgumentParser(
        description=benchmarks.trial.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="the short form of each row")
    parser.add_argument("--only", choices=ROWS, action="append", help="this row; may be repeated (default: each)")
    parser.add_argument("--store", choices=STORES, action="append", help="this store; may be repeated (default: each)")
    parser.add_argument("--host", choices=("llama_stack", "ogx"), default="llama_stack")
    options = parser.parse_args()
    sys.stdout.write(heading())
    well = True
    for outcome in _outcomes(options):
        sys.stdout.write(row(outcome))
        sys.stdout.flush()
        well = well and outcome.well
    return 0 if well else 1


def _outcomes(options: argparse.Namespace) -> Iterator[Outcome]:
    for name in options.only or ROWS:
        for store in ROWS[name][1]:
            if options.store and store not in options.store:
                continue
            with tempfile.TemporaryDirectory(prefix="trial-") as folder:
                yield run(name, store, options.host, Path(folder), short=options.short)


if __name__ == "__main__":
    sys.exit(main())
