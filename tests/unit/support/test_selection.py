"""A run with `--day` has the fixed tests and a fifth of the others; five days have all."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import pytest

from tests.support import selection
from tests.support.selection import DAYS, FOLDERS, first_day
from tests.support.stack import REPOSITORY

# Each starts runs of tests.
pytestmark = pytest.mark.extended

FIXED: Final = """
import pytest

@pytest.mark.parametrize("number", range(20))
def test_fixed(number: int) -> None: ...
"""
EXTENDED: Final = """
import pytest

pytestmark = pytest.mark.extended

@pytest.mark.parametrize("number", range(50))
def test_extended(number: int) -> None: ...

@pytest.mark.smoke
def test_smoke() -> None: ...
"""
BY_VALUE: Final = """
import pytest

pytestmark = [pytest.mark.extended, pytest.mark.days_by("servers")]

@pytest.fixture(scope="module", params=range(3))
def servers(request: pytest.FixtureRequest) -> int:
    return request.param

def test_one(servers: int) -> None: ...

def test_other(servers: int) -> None: ...
"""
WHOLE: Final = """
import pytest

@pytest.mark.whole_run
def test_whole() -> None: ...
"""
PROPERTY: Final = """
from hypothesis import given, settings, strategies

examples = []

@settings(max_examples=30, derandomize=True, database=None)
@given(strategies.integers())
def test_property(number: int) -> None:
    examples.append(number)

def test_examples() -> None:
    print("examples:", len(examples))
"""
RELATIVES: Final = """
import pytest

@pytest.mark.MARK
@pytest.mark.parametrize("letter", "ab")
@pytest.mark.parametrize("number", range(5))
def test_one_of_ten(letter: str, number: int) -> None: ...
"""
CONFTEST: Final = """
from tests.support.selection import add_option as pytest_addoption, select_by_day as pytest_configure
"""
XDIST: Final = ("-p", "xdist", "--numprocesses=2", "--dist=loadfile")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder with 20 fixed tests, 50 that take turns, and one of these that is fixed all the same."""
    (tmp_path / "test_a.py").write_text(FIXED)
    (tmp_path / "test_b.py").write_text(EXTENDED)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    settings = "[pytest]\nmarkers =\n    extended: takes turns\n    smoke: does not\n    days_by(parameter): by value\n    relatives: but the first\n    live: too\n    day(number): then\n    whole_run: only in a whole run\n"
    (tmp_path / "pytest.ini").write_text(settings)
    return tmp_path


def run(suite: Path, *arguments: str) -> tuple[int, str]:
    """Run tests with the selection and no other plugin, and return the exit status and the output."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env |= {"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(command, cwd=suite, env=env, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def passed(output: str) -> list[str]:
    """Return the ids of the tests that ran."""
    return sorted(set(re.findall(r"test_[ab]\.py::\w+(?:\[\d+\])?", output)))


def test_five_days_run_fixed_tests_each_time_and_each_other_test_once(suite: Path) -> None:
    code, output = run(suite)
    everything = passed(output)
    fixed = [each for each in everything if "test_extended" not in each]
    assert (code, len(fixed), len(everything)) == (0, 21, 71)
    turns = []
    for day in range(DAYS):
        code, output = run(suite, f"--day={day}")
        ran = passed(output)
        assert code == 0
        assert set(fixed) <= set(ran)
        turns += [each for each in ran if each not in fixed]
    assert sorted(turns) == [each for each in everything if each not in fixed]


@pytest.mark.parametrize("workers", [(), XDIST], ids=["one-process", "xdist"])
def test_selection_is_printed_once(suite: Path, workers: Sequence[str]) -> None:
    code, output = run(suite, *workers, "--day=1")
    assert code == 0
    ran = passed(output)
    chosen = len(ran) - 21
    assert 0 < chosen < 50
    assert output.count(f"day 1: 21 fixed tests, and {chosen} of 50 tests that take turns:") == 1
    assert output.count(f"test_b.py: {chosen} of 50") == 1


@pytest.mark.parametrize("day", range(DAYS))
def test_each_day_has_its_share_of_each_file(suite: Path, day: int) -> None:
    few = "import pytest\n\n@pytest.mark.extended\n@pytest.mark.parametrize('number', range(7))\ndef test_few(number): ...\n"
    (suite / "test_c.py").write_text(few)
    code, output = run(suite, f"--day={day}")
    assert code == 0
    assert "test_b.py: 10 of 50" in output
    assert re.search("test_c.py: [12] of 7", output)


def test_first_day_of_a_file_is_the_same_in_each_process_and_differs_between_files() -> None:
    assert first_day("tests/integration/test_fuzz.py") == 0
    counts = [[first_day(f"test_{number}.py") for number in range(1_000)].count(day) for day in range(DAYS)]
    assert all(150 < count < 250 for count in counts)


def test_test_with_a_day_runs_on_that_day_only(suite: Path) -> None:
    (suite / "test_c.py").write_text(
        "import pytest\n\n@pytest.mark.extended\n@pytest.mark.day(3)\ndef test_long() -> None: ...\n"
    )
    assert [day for day in (3, 4) if "test_c.py: 1 of 1" in run(suite, f"--day={day}")[1]] == [3]


def test_tests_with_the_same_value_of_a_parameter_share_a_day(suite: Path) -> None:
    """Each value has its own day, and with all days each test has run once."""
    (suite / "test_b.py").write_text(BY_VALUE)
    first = first_day("test_b.py")
    for number in range(3):
        ran = re.findall(r"test_b\.py::test_\w+\[(\d)\] PASSED", run(suite, f"--day={(first + number) % DAYS}")[1])
        assert ran == [str(number)] * 2
    assert "and 0 of 6" in run(suite, f"--day={(first + 3) % DAYS}")[1]


def test_property_has_all_examples_on_the_first_day_of_its_file_only(suite: Path) -> None:
    (suite / "test_c.py").write_text(PROPERTY)
    first = first_day("test_c.py")
    found = [re.search(r"examples: (\d+)", run(suite, "-s", *day)[1]) for day in ((), (f"--day={first}",))]
    found.append(re.search(r"examples: (\d+)", run(suite, "-s", f"--day={(first + 1) % DAYS}")[1]))
    assert [each and each[1] for each in found] == ["30", "30", "3"]


@pytest.mark.parametrize("mark", ["live", "relatives"])
def test_first_parameter_set_of_relatives_is_fixed(suite: Path, mark: str) -> None:
    (suite / "test_a.py").write_text(RELATIVES.replace("MARK", mark))
    found = [set(re.findall(r"test_one_of_ten(\[.*\]) PASSED", run(suite, f"--day={day}")[1])) for day in (0, 1)]
    assert set.intersection(*found) == {"[0-a]"}
    assert all(len(each) in (2, 3) for each in found)


def test_no_day_has_what_only_whole_runs_have(suite: Path) -> None:
    (suite / "test_b.py").write_text(WHOLE)
    assert "test_b.py::test_whole PASSED" in run(suite)[1]
    assert not any("test_whole" in run(suite, f"--day={day}")[1] for day in range(DAYS))


def test_day_without_tests_is_no_failure(suite: Path) -> None:
    test = "test_b.py::test_extended[7]"
    other = (first_day("test_b.py") + 1) % DAYS
    assert run(suite, f"--day={other}", test)[0] == pytest.ExitCode.OK
    assert run(suite, f"--day={other}", *XDIST, test)[0] == pytest.ExitCode.OK
    assert run(suite, "-k", "no_such_test")[0] == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize("day", ["5", "-1", "today"])
def test_day_outside_its_range_is_refused(suite: Path, day: str) -> None:
    code, output = run(suite, f"--day={day}")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "--day" in output


@dataclass(frozen=True)
class Marked:
    """A test with marks."""

    marks: Sequence[str]
    path: Path = REPOSITORY / "tests" / "integration" / "test_mcp.py"
    callspec: SimpleNamespace | None = None

    def iter_markers(self) -> Iterator[pytest.Mark]:
        """Yield its marks."""
        return (getattr(pytest.mark, name).mark for name in self.marks)


@pytest.mark.parametrize(
    ("marks", "on_llama_stack", "on_ogx"),
    [
        ([], False, True),
        (["both_hosts"], False, False),
        (["extended"], True, True),
        (["extended", "both_hosts"], True, True),
        (["extended", "smoke"], False, True),
        (["extended", "smoke", "both_hosts"], False, False),
    ],
)
def test_fixed_tests_on_ogx_are_those_of_what_depends_on_the_host(
    marks: Sequence[str], on_llama_stack: bool, on_ogx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for host in (False, True):
        monkeypatch.setattr(selection, "ON_OGX", host)
        found.append(selection.takes_turns(cast("pytest.Item", Marked(marks))))
    assert found == [on_llama_stack, on_ogx]


@pytest.mark.parametrize(
    ("indices", "marks", "same"),
    [
        ({}, [], False),
        ({"kind": 0, "provider": 0}, [], False),
        ({"kind": 1, "provider": 0}, [], True),
        ({"kind": 0, "provider": 1}, [], False),
        ({"kind": 1}, ["both_hosts"], False),
        ({"kind": 1}, ["extended"], False),
    ],
)
def test_later_parameter_sets_run_on_one_host_unless_they_may_differ(
    indices: dict[str, int], marks: Sequence[str], same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in (False, True):
        monkeypatch.setattr(selection, "ON_OGX", host)
        test = Marked(marks, callspec=SimpleNamespace(indices=indices))
        assert selection.is_same_on_ogx(cast("pytest.Item", test)) == (host and same)


def test_folders_that_take_turns_exist() -> None:
    assert [folder for folder in FOLDERS if not any(folder.rglob("*.py"))] == []


def test_unit_that_hangs_fails_after_a_minute_and_a_live_test_later(request: pytest.FixtureRequest) -> None:
    live = SimpleNamespace(path=REPOSITORY / "tests" / "integration" / "test_any.py")
    selection.limit_seconds([request.node, cast("pytest.Item", live)])
    assert [mark.args for mark in request.node.iter_markers("timeout")] == [(selection.SHORT_SECONDS,)]
