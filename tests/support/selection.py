"""Which tests a run with `--day` has: the fixed ones, and a fifth of those that take turns.

    pytest               # all tests
    pytest --day=3       # the fixed tests, and of the others those whose day is 3

`make test` passes the day of the date, so that each test that takes turns runs on one of five consecutive days. What
a run had is printed at its end. Tests with `whole_run` belong to no day. Properties (hypothesis) have all of
their examples on the first day of their file, and a part of them on the others. A test of a unit that hangs fails after a
minute.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Final, cast

import pytest
from hypothesis import is_hypothesis_test, settings

DAYS: Final = 5
"""After as many days, each test without `whole_run` has run."""
PART: Final = 10
"""A property of another day has its examples divided by this."""
TESTS: Final = Path(__file__).parents[1]
FOLDERS: Final = tuple(TESTS / name for name in ("demo", "gpt_oss", "integration/browser", "wheels"))
"""Their tests take turns: they need long, or environments of their own."""
FIRST_ONLY: Final = frozenset({"live", "relatives"})
"""Marks of tests whose parameter sets after the first take turns."""
OWN: Final = frozenset({"both_hosts", "extended", "whole_run"})
"""Marks of tests all of whose parameter sets run on OGX too."""
ON_OGX: Final = find_spec("ogx") is not None
SHORT: Final = tuple(TESTS / name for name in ("unit", "contract"))
"""Their tests take seconds, and start no stack."""
SHORT_SECONDS: Final = 60
"""Seconds after which one of them that hangs fails."""


def add_option(parser: pytest.Parser) -> None:
    """Add `--day`."""
    parser.addoption(
        "--day",
        type=int,
        choices=range(DAYS),
        help=f"run the fixed tests, and of those that take turns the ones of this day, 0 to {DAYS - 1}",
    )


def select_by_day(config: pytest.Config) -> None:
    """Register the plugin in a run that has `--day`."""
    day: int | None = config.getoption("day")
    if day is not None:
        config.pluginmanager.register(DaySelection(config, day), "day-selection")


def takes_turns(test: pytest.Item) -> bool:
    """Whether a test runs on one day of five. It has a mark, or belongs to a folder, that says so.

    Of a test with `relatives`, and of each live test, the first parameter set is fixed. With `smoke` a test is fixed all
    the same. On OGX, only the tests of what depends on the host are fixed.
    """
    marks = {mark.name for mark in test.iter_markers()}
    if ON_OGX and "both_hosts" not in marks:
        return True
    if "smoke" in marks:
        return False
    if marks & FIRST_ONLY and (parameters := getattr(test, "callspec", None)) and any(parameters.indices.values()):
        return True
    return "extended" in marks or _is_below(test.path, FOLDERS)


def is_same_on_ogx(test: pytest.Item) -> bool:
    """Whether a live test has `one_host` without its mark: what its later parameter sets vary is the same on both hosts.

    The exceptions have a mark of their own, or vary the inference provider, one of which is the host's.
    """
    if (
        ON_OGX
        and (parameters := getattr(test, "callspec", None))
        and not {mark.name for mark in test.iter_markers()} & OWN
    ):
        return any(index for name, index in parameters.indices.items() if name != "provider")
    return False


@cache
def _is_below(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def days(turns: Sequence[pytest.Item]) -> Iterator[int]:
    """Return the days of tests that take turns.

    A file's tests have consecutive days, so that each day has its share of each file: neighbours take about as long.
    The first day depends on the file's name only. With `days_by`, those that have the same value of a parameter share a
    day, so that what takes long to start is started on one day only.
    """
    found = Counter[str]()
    values: dict[str, list[object]] = {}
    for test in turns:
        file = _file(test)
        if mark := test.get_closest_marker("day"):
            yield mark.args[0]
        elif mark := test.get_closest_marker("days_by"):
            value = cast("pytest.Function", test).callspec.params[mark.args[0]]
            seen = values.setdefault(file, [])
            if value not in seen:
                seen.append(value)
            yield (first_day(file) + seen.index(value)) % DAYS
        else:
            yield (first_day(file) + found[file]) % DAYS
            found[file] += 1


def first_day(file: str) -> int:
    """Return the day of the first test of a file. It is the same in each process."""
    return int.from_bytes(blake2b(file.encode(), digest_size=8).digest()) % DAYS


def shorten_properties(tests: Sequence[pytest.Item], day: int) -> None:
    """Leave properties whose files have another first day a part of their examples."""
    others = [test for test in tests if isinstance(test, pytest.Function) and first_day(_file(test)) != day]
    for function in {test.function for test in others if is_hypothesis_test(test.function)}:
        # hypothesis offers no other way to change what the decorators have set. State machines have it elsewhere.
        if whole := getattr(function, "_hypothesis_internal_use_settings", None):
            fewer = settings(whole, max_examples=max(1, whole.max_examples // PART))
            function._hypothesis_internal_use_settings = fewer


def limit_seconds(tests: Sequence[pytest.Item]) -> None:
    """Have those of `SHORT` that hang fail early, with the stack of each thread, unless they have a limit of their own."""
    for test in tests:
        if _is_below(test.path, SHORT) and test.get_closest_marker("timeout") is None:
            test.add_marker(pytest.mark.timeout(SHORT_SECONDS))


class DaySelection:
    """Deselects the tests of other days.

    Args:
        day: the day, below `DAYS`.
    """

    def __init__(self, config: pytest.Config, day: int) -> None:
        self._config = config
        self._day = day
        self._fixed = 0
        self._every = Counter[str]()
        self._kept = Counter[str]()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests of the day, after `-m` and `-k` have selected. All tests of a file are collected at once."""
        left = {test for test in items if test.get_closest_marker("whole_run")}
        turns = [test for test in items if test not in left and takes_turns(test)]
        self._fixed += len(items) - len(left) - len(turns)
        left |= {test for test, day in zip(turns, days(turns), strict=True) if day != self._day}
        self._every.update(_file(test) for test in turns)
        self._kept.update(_file(test) for test in turns if test not in left)
        shorten_properties(items, self._day)
        limit_seconds(items)
        if left:
            self._config.hook.pytest_deselected(items=list(left))
            items[:] = [test for test in items if test not in left]

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """A day without tests is no failure. Print what the run had; with pytest-xdist the first worker does."""
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
        worker = getattr(self._config, "workerinput", {"workerid": "gw0"})
        if worker["workerid"] == "gw0":
            capture = self._config.pluginmanager.get_plugin("capturemanager")
            with capture.global_and_fixture_disabled() if capture else nullcontext():
                print("", *self._described(), sep="\n", file=sys.stderr, flush=True)

    def _described(self) -> Sequence[str]:
        return (
            f"day {self._day}: {self._fixed} fixed tests, and {self._kept.total()} of {self._every.total()} tests that"
            " take turns:",
            *(
                f"  {path}: {self._kept[path]} of {count}"
                for path, count in sorted(self._every.items())
                if self._kept[path]
            ),
        )


def _file(test: pytest.Item) -> str:
    return test.nodeid.partition("::")[0]
