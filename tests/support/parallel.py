"""Runs tests in several processes of pytest, which take one file after the other from the same queue.

    python -m tests.support.parallel --processes=4 --report=.reports/all.xml tests -- --timeout=900

Each file is imported once, by the process that runs it, and what a process prints and reports stays there. pytest-xdist
lets each process import all files, and a further process takes each report of each test: with 17,000 tests, most of
which take milliseconds, that is a tenth of the processor time of the run.

The files of the browser's tests belong together: they share a stack with the page and a browser, which start once.
"""

import argparse
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.process import end_with_parent

TESTS: Final = Path(__file__).parents[1]
TOGETHER: Final = TESTS / "integration" / "browser"
LIVE: Final = (TESTS / "integration", TESTS / "demo")
"""The folders of tests that start servers."""
LIVE_END: Final = 0.5
"""The part of the other files that are mixed with the live tests. The last ones only compute."""
RECORD: Final = 8
"""Bytes of a number in the queue. A pipe is read under a lock, so that each number has one reader."""


def groups(folders: Sequence[Path]) -> Sequence[Sequence[Path]]:
    """Return the test files of folders, in the order in which they run: each group is for one process.

    Live tests, which wait for servers, are mixed with the other ones, which compute, so that no core idles. They come
    first: other test runs end before this one, and what is left when it has the cores for itself must use them. The last
    files are short: no process then works alone on a long one.
    """
    files = sorted(file.resolve() for folder in folders for file in folder.rglob("test_*.py"))
    found = [list(each) for _, each in groupby(files, lambda file: TOGETHER if TOGETHER in file.parents else file)]
    kinds = [[each for each in found if is_live(each[0]) is kind] for kind in (True, False)]
    live, other = ([(index / len(kind), each) for index, each in enumerate(kind)] for kind in kinds)
    return [each for _, each in sorted([*((LIVE_END * at, each) for at, each in live), *other])]


def is_live(path: Path) -> bool:
    """Whether the tests of a file start servers."""
    return any(path.is_relative_to(folder) for folder in LIVE)


def add_option(parser: pytest.Parser) -> None:
    """Add `--queue`."""
    parser.addoption("--queue", type=int, help="take the files to run from this descriptor (tests/support/parallel.py)")
    parser.addoption("--ends-with-parent", action="store_true", help="end the tests when the parent process ends")


def run_queue(config: pytest.Config) -> None:
    """Register the plugin in a process of a run of several, and end the tests on SIGTERM as on Ctrl-C."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if config.getoption("ends_with_parent"):
        end_with_parent()
    queue: int | None = config.getoption("queue")
    if queue is not None:
        config.pluginmanager.register(QueuedFiles(queue, groups([Path(each) for each in config.args])), "queued-files")


class QueuedFiles:
    """Collects and runs the groups of files whose numbers come from a pipe, until it ends.

    All folders are collected at first, since the fixtures of a `conftest.py` belong to the object of its folder.

    Args:
        queue: the descriptor of the pipe.
        found: all groups.
    """

    def __init__(self, queue: int, found: Sequence[Sequence[Path]]) -> None:
        os.set_inheritable(queue, False)
        self._queue = queue
        self._groups = found
        self._files: dict[Path, pytest.Collector] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Collect no more than the folder."""
        session.perform_collect(genitems=False)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> Generator[None, None, None]:
        """Find the files, and keep the folder, which comes before all tests, away from what selects tests."""
        if not self._files:
            for folder in items:
                self._find(folder)
            items.clear()
        yield

    def _find(self, folder: pytest.Directory) -> None:
        report = folder.ihook.pytest_make_collect_report(collector=folder)
        for node in report.result:
            if isinstance(node, pytest.Directory):
                self._find(node)
            else:
                self._files[node.path] = node

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run each test. What the next one needs too, also that of another file, stays."""
        tests = self._tests(session)
        item, path = next(tests, None), None
        while item is not None:
            following = next(tests, None)
            if item.path != path:
                path = item.path
                # What is imported stays out of garbage collections, which would visit it each time. What the tests of
                # the file before have made is collected already (leaks.py).
                gc.freeze()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        gc.unfreeze()  # Extension modules look at the end for objects that are left.
        return True

    def _tests(self, session: pytest.Session) -> Iterator[pytest.Item]:
        count = 0
        while number := os.read(self._queue, RECORD):
            for file in self._groups[int(number)]:
                if module := self._files.get(file):  # None: it is ignored
                    _collect(module, session)
                    count += len(session.items)
                    yield from session.items
        session.testscollected = count


def _collect(module: pytest.Collector, session: pytest.Session) -> None:
    """Collect the tests of a file, and select those to run."""
    gc.disable()
    session.items = list(session.genitems(module))
    session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=session.items)
    gc.enable()


class Processes:
    """The processes of a run. Their lines are printed with the number of the process.

    Args:
        count: of processes.
        report: where the JUnit reports go; the number of the process is put before the suffix.
        arguments: pytest's.
    """

    def __init__(self, count: int, report: Path, arguments: Sequence[str]) -> None:
        self._count = count
        self._report = report
        self._arguments = arguments

    def run(self, waiting: int) -> int:
        """Run groups of files, and return the exit status: that of a process that failed, or 0.

        Args:
            waiting: number of groups.
        """
        taken, put = os.pipe()
        os.write(put, b"".join(b"%*d" % (RECORD, number) for number in range(waiting)))
        os.close(put)
        started = [self._start(number, taken) for number in range(1, self._count + 1)]
        os.close(taken)
        # Ctrl-C reaches each process, which then ends what it has started; SIGTERM of `make` may reach only its shell.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: _terminate(started))
        end_with_parent()
        printers = [threading.Thread(target=_print, args=each) for each in enumerate(started, 1)]
        for printer in printers:
            printer.start()
        for printer in printers:
            printer.join()
        statuses = {each.wait() for each in started}
        if statuses == {pytest.ExitCode.NO_TESTS_COLLECTED}:
            return pytest.ExitCode.NO_TESTS_COLLECTED
        return next(iter(statuses - {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}), 0)

    def _start(self, number: int, queue: int) -> subprocess.Popen[str]:
        report = self._report.with_suffix(f".{number}{self._report.suffix}")
        own = ("--quiet", f"--queue={queue}", f"--junit-xml={report}", "--override-ini=console_output_style=classic")
        command = [sys.executable, "-m", "pytest", *own, *self._arguments]
        return subprocess.Popen(
            command, pass_fds=[queue], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )


def _terminate(processes: Sequence[subprocess.Popen[str]]) -> None:
    for each in processes:
        each.terminate()


def _print(number: int, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{number}: {line}", end="", flush=True)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--report", type=Path, required=True, help="file of the JUnit report")
    parser.add_argument("folder", type=Path)
    parser.add_argument("arguments", nargs="*", help="pytest's, after --")
    options = parser.parse_args()
    arguments = [*options.arguments, str(options.folder)]
    return Processes(options.processes, options.report, arguments).run(len(groups([options.folder])))


if __name__ == "__main__":
    sys.exit(main())
