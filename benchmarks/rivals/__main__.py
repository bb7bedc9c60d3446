"""The command."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import benchmarks.rivals as package
from benchmarks.paced import program
from benchmarks.rivals import loads
from benchmarks.rivals.environments import MissingError, environment
from benchmarks.rivals.kills import survivors
from benchmarks.rivals.loads import SHORT, WHOLE, Size
from benchmarks.rivals.report import table
from benchmarks.rivals.servers import RIVALS, Rival
from benchmarks.servers import Worker
from tests.support.process import StartError
from tests.support.stack import LiveStack

type Json = dict[str, Any]


def say(line: str) -> None:
    """Print progress."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class Clients:
    """The load clients. A client ends with its first error; the next job gets a new one."""

    def __init__(self, context: ExitStack) -> None:
        self._context = context
        self._workers: dict[str, Worker] = {}

    def ask(self, module: str, job: Json) -> Any:
        """Run a job."""
        if module not in self._workers:
            self._workers[module] = self._context.enter_context(Worker(f"benchmarks.{module}"))
        try:
            return self._workers[module].ask(job)
        except RuntimeError:
            del self._workers[module]
            raise


class Comparison:
    """One run: the servers that run, and what was found of each."""

    def __init__(self, rivals: Sequence[Rival], size: Size, folder: Path) -> None:
        self._rivals, self._size, self._folder = rivals, size, folder
        self._running: list[tuple[Rival, LiveStack]] = []
        self.found: dict[str, Json] = {
            each.name: {"title": each.title, "version": each.version, "store": each.store, "rounds": []}
            for each in rivals
        }

    def measure(self, rounds: int) -> None:
        """Measure all servers."""
        with ExitStack() as context:
            engine = context.enter_context(program("benchmarks.engine", loads.STEP_MS))
            ask = Clients(context).ask
            self._start(context, f"http://127.0.0.1:{engine.port}")
            # One request first: the host's own provider creates its tables meanwhile, and fails the others.
            self._each(-1, lambda rival, server: loads.short(ask, rival, server, 1, 2))
            self._each(-1, lambda rival, server: loads.one_round(ask, rival, server, SHORT))
            for number in range(rounds):
                self._each(number, lambda rival, server: loads.one_round(ask, rival, server, self._size))
            self._each(0, lambda _, server: {loads.AFTER: loads.resident(server)})
            self._each(0, lambda rival, server: loads.chain(ask, rival, server, self._size.turns))
            for rival, server in self._running:
                say(f"{rival.title}: kill -9")
                self.found[rival.name]["survived"] = survivors(rival, server)

    def _start(self, context: ExitStack, url: str) -> None:
        for rival in self._rivals:
            say(f"starting {rival.title}")
            try:
                server = rival.open(environment(rival.environment), url, self._folder / rival.name)
                context.enter_context(server)
            except (MissingError, StartError) as error:
                self._note_failure(rival, error)
                continue
            self._running.append((rival, server))
            self.found[rival.name]["rounds"].append({loads.REST: loads.resident(server)})

    def _each(self, number: int, measured: Callable[[Rival, LiveStack], Json]) -> None:
        """Measure all in turn, each other round in reverse order; a round before the first warms up and is dropped.

        A server that fails takes no further part.
        """
        for rival, server in list(self._running)[:: -1 if number % 2 else 1]:
            say(f"round {number + 1}: {rival.title}")
            rounds = self.found[rival.name]["rounds"]
            try:
                figures = measured(rival, server)
            except (RuntimeError, OSError) as error:
                say(server.tail())
                self._note_failure(rival, error)
                self._running.remove((rival, server))
                continue
            if number >= 0:
                rounds += [{}] * (number + 1 - len(rounds))
                rounds[number] = rounds[number] | figures

    def _note_failure(self, rival: Rival, error: Exception) -> None:
        self.found[rival.name]["error"] = str(error).strip().splitlines()[-1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=package.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: 3)")
    parser.add_argument("--only", nargs="*", choices=[each.name for each in RIVALS], help="only these servers")
    parser.add_argument("--short", action="store_true", help="one small round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args()
    rivals = [each for each in RIVALS if not options.only or each.name in options.only]
    at, before = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(rivals, SHORT if options.short else WHOLE, Path(folder))
        comparison.measure(1 if options.short else options.rounds)
    found = {"at": at, "load": [before, os.getloadavg()[0]], "servers": comparison.found}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    sys.stdout.write(table(found))


if __name__ == "__main__":
    main()
