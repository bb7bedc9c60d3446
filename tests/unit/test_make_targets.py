"""The targets of the Makefile run every test, and select by existing markers."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.selection import DAYS

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ROOT / "tests"
LIVE: Final = "tests/integration"
WHEELS: Final = TESTS / "wheels" / "try_wheels.py"
"""Tests that need a package index; the file's name excludes them from runs that do not name it."""
RUN: Final = re.compile(r" -m (?:pytest|tests\.support\.parallel) (.*) 2>&1")
ENV: Final = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "GATE_DAY"))}


def commands(target: str, **env: str) -> dict[str, list[str]]:
    """Return the arguments of each command of a target that runs tests, by the name of the report."""
    command = ["make", "--dry-run", "--directory", str(ROOT), target]
    printed = subprocess.run(command, env=ENV | env, capture_output=True, text=True, check=True).stdout
    found = {}
    for line in printed.splitlines():
        if run := RUN.search(line):
            arguments = shlex.split(run[1])
            [report] = [each for each in arguments if each.startswith(("--junit-xml=", "--report="))]
            found[Path(report).stem] = arguments
    return found


def paths(arguments: list[str]) -> list[str]:
    return [each for each in arguments if re.match(r"tests(/|$)", each) and not each.endswith(".ini")]


def days(arguments: list[str]) -> tuple[str, ...]:
    return tuple(each for each in arguments if each.startswith("--day"))


def selection(arguments: list[str]) -> str | None:
    return arguments[arguments.index("-m") + 1] if "-m" in arguments else None


@pytest.mark.parametrize("target", ["test", "test-all"])
def test_targets_select_nothing_but_the_host_and_the_day(target: str) -> None:
    targets = commands(target)
    selections = {name: selection(arguments) for name, arguments in targets.items()}
    assert selections == {"llama-stack": None, "ogx": "not one_host", "gpt-oss": None, "wheels": None}
    for arguments in targets.values():
        excluding = [each for each in arguments if each.startswith(("-k", "--ignore", "--deselect", "--lf"))]
        assert excluding == []


def test_release_check_tries_what_was_built_and_then_says_what_keeps_it_from_being_tagged() -> None:
    command = ["make", "--dry-run", "--directory", str(ROOT), "release-check", "DIST=built"]
    printed = subprocess.run(command, env=ENV, capture_output=True, text=True, check=True).stdout.splitlines()
    steps = [line for line in printed if re.match(r"scripts/release|.* -m pytest ", line)]
    assert [steps[0], steps[-1]] == ["scripts/release built", "scripts/release-state built"]
    assert "env RELEASE=built" in steps[1]
    assert "tests/wheels/try_wheels.py" in steps[1]


@pytest.mark.parametrize("target", ["test", "test-all"])
def test_targets_cover_every_test_file(target: str) -> None:
    found = {name: paths(arguments) for name, arguments in commands(target).items()}
    assert found == {
        "llama-stack": ["tests"],  # except what pyproject.toml ignores
        "ogx": [LIVE],
        "gpt-oss": ["tests/gpt_oss"],
        "wheels": [str(WHEELS.relative_to(ROOT))],
    }


def test_all_parts_of_the_gate_have_the_same_day_and_all_tests_have_none() -> None:
    assert {days(arguments) for arguments in commands("test", GATE_DAY="3").values()} == {("--day=3",)}
    [today] = {days(arguments) for arguments in commands("test").values()}
    assert today in [(f"--day={day}",) for day in range(DAYS)]
    assert {days(arguments) for arguments in commands("test-all", GATE_DAY="3").values()} == {()}


def test_pytest_settings_ignore_only_gpt_oss_tests(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getini("testpaths") == ["tests"]
    ignored = [
        each for each in pytestconfig.getini("addopts") if each.startswith(("--ignore", "--deselect", "-m", "-k"))
    ]
    assert ignored == ["--ignore=tests/gpt_oss"]


def test_every_file_with_tests_is_named_as_test_file() -> None:
    has_tests = re.compile(r"^(async )?def test_", re.MULTILINE)
    files = [path for path in TESTS.rglob("*.py") if has_tests.search(path.read_text())]
    assert [path for path in files if not path.name.startswith("test_")] == [WHEELS]


def test_both_hosts_marker_is_only_used_in_live_tests() -> None:
    marked = [path for path in TESTS.rglob("test_*.py") if "mark.both_hosts" in path.read_text()]
    assert marked
    assert all(path.is_relative_to(ROOT / LIVE) for path in marked if path != Path(__file__))


def test_ci_runs_the_targets_that_the_readme_names() -> None:
    last = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    assert last.startswith("make ")
    assert {"lint", "types", "docs", "test"} == set(last.split()[1:])
    assert "$ make test  " in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("target", ["demo", pytest.param("serve", marks=pytest.mark.extended)])
def test_unknown_web_search_is_refused_before_packages_are_installed(target: str, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    for each in (*ROOT.iterdir(), *(ROOT / "scripts").iterdir()):
        if not each.name.startswith(".") and each.name not in ("scripts", "install-run"):
            (tmp_path / each.relative_to(ROOT)).symlink_to(each)
    installer = tmp_path / "scripts" / "install-run"
    installer.write_text("#!/bin/sh\necho installing\nexit 1\n")
    installer.chmod(0o755)
    ran = subprocess.run(
        ["make", target], cwd=tmp_path, env=ENV | {"WEB_SEARCH": "google"}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "WEB_SEARCH is 'google'; it can be 'ddgs', or be left out." in ran.stderr
    assert "installing" not in ran.stdout


@pytest.mark.parametrize(("target", "needed"), [("test", False), ("test-all", True)])
def test_model_servers_are_installed_for_all_tests_only(target: str, needed: bool) -> None:
    command = ["make", "--dry-run", "--always-make", "--directory", str(ROOT), "lint", target]
    printed = subprocess.run(command, env=ENV, capture_output=True, text=True, check=True).stdout
    for pins in ("constraints/model-servers.txt", "constraints/litellm.txt"):
        assert (pins in printed) is needed
